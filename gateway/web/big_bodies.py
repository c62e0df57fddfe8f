"""Large bodies are read and edited beside the event loop, one at a time, so that nobody else waits for them.

A body of megabytes takes tenths of seconds; for so long no stream would go on and no probe would be answered. Small ones
are read at once: the way to a thread and back costs more than they do.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, Final, ParamSpec, TypeVar

LIMIT_BYTES: Final = 256 * 1024
# All take turns at one interpreter: a second would finish neither sooner, and take turns from the event loop.
AT_ONCE: Final = 1

P = ParamSpec("P")
T = TypeVar("T")


class BigBodies:
    """The thread of one gateway. It starts with the first large body."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="big bodies")

    async def read(self, work: Callable[Concatenate[bytes, P], T], body: bytes, *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(body, ...)`, which must be plain and pure; raises what it raises. A body within LIMIT_BYTES waits for nothing.

        A cancelled caller gives up its turn, or the result if the work has begun: never more than AT_ONCE run.
        """
        if len(body) <= LIMIT_BYTES:
            return work(body, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(body, *args, **kwargs))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
