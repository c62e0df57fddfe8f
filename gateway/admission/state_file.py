"""The state file: evidence that outlives the process. Read once at the start, written now and then and at the end.

It promises: a file that is torn, foreign or unreadable is left out with one line in the log, and the gateway starts without;
a file is replaced whole or not at all, so that no reader, and no next start, ever finds half of one.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from gateway.clock import Clock
from gateway.core.commitment import Evidence

_PERIOD_S: Final = 60.0
_MOST_BYTES: Final = 32 << 20

log = logging.getLogger("kvgate")


class Recorded(Protocol):
    """What else is worth keeping, in terms of JSON. `take` raises ValueError for what `record` did not give."""

    def record(self) -> dict[str, Any]: ...

    def take(self, record: object) -> None: ...


class StateFile:
    """Keeps `evidence` in the file at `path`, and whatever stands in `beside`, each under its name there."""

    def __init__(self, path: Path, evidence: Evidence, clock: Clock, *, beside: Mapping[str, Recorded] | None = None) -> None:
        self._beside = dict(beside or {})
        self._path = path
        self._evidence = evidence
        self._clock = clock
        self._written = b""
        self._has_failed = False

    def read(self) -> None:
        """Begin with what the file holds, if it holds anything that can be used."""
        try:
            if self._path.stat().st_size > _MOST_BYTES:
                raise ValueError("it is too large")
            content = json.loads(self._path.read_bytes())
            families = self._evidence.take(content)
        except FileNotFoundError:
            log.info("no evidence in %s yet", self._path)
        except (OSError, ValueError, RecursionError) as error:
            log.warning("the state file %s is left out: %s", self._path, error)
        else:
            log.info("evidence read from %s: %s", self._path, "; ".join(sorted(families)) or "none")
            self._read_beside(content)

    def _read_beside(self, content: Mapping[str, Any]) -> None:
        for name, recorded in self._beside.items():
            try:
                if name in content:
                    recorded.take(content[name])
            except ValueError as error:
                log.warning("the %s in the state file %s are left out: %s", name, self._path, error)

    def write(self) -> None:
        """Replace the file by what is known now. Says once that it cannot be written, and goes on."""
        self._replace(self._content())

    async def run(self) -> None:
        """Write once a minute what is new; until cancelled."""
        while True:
            await self._clock.sleep_until(self._clock.now() + _PERIOD_S)
            await asyncio.to_thread(self._replace, self._content())

    def _content(self) -> bytes:
        content = self._evidence.record() | {name: recorded.record() for name, recorded in self._beside.items()}
        return json.dumps(content, separators=(",", ":")).encode()

    def _replace(self, content: bytes) -> None:
        if content == self._written:
            return
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            if not self._has_failed:
                log.warning("the state file %s cannot be written: %s", self._path, error)
            self._has_failed = True
            beside.unlink(missing_ok=True)
            return
        self._written = content
        self._has_failed = False
