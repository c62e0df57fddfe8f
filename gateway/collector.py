"""The collector of circles, kept from holding up what streams.

What a request makes falls apart by itself at its end (tests/web/test_serve_request.py says so), so a full collection finds
nothing, and to find it looks at all that open streams consist of, some seventy objects each: while 10,000 streams came it
stopped all of them for a second again and again. So what was there at the start is looked at no more; of what is young few
are looked at in one go; and all where little is under way, or else after two million more objects.
"""

import gc
from collections.abc import Callable
from typing import Final

from gateway.clock import Clock

PERIOD_S: Final = 30.0
# New objects until the young are looked at: each takes a quarter to half of a microsecond, in which nothing else goes on, and
# plain requests come and go without so many left over. The middle-aged are looked at every other time, since they are as many
# again then; and all after so many looks at those, which is two million objects.
_THRESHOLDS: Final = (1_000, 0, 1_000)


def keep_what_is_here() -> None:
    """To be called once everything is built: looked through at every full collection, it cost a sixth of a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


async def collect_in_quiet(clock: Clock, *, is_quiet: Callable[[], bool]) -> None:
    """Twice a minute, if it is quiet and objects have grown old since. Runs until cancelled."""
    while True:
        await clock.sleep_until(clock.now() + PERIOD_S)
        if is_quiet() and any(gc.get_count()[1:]):
            gc.collect()
