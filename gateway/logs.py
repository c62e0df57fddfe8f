"""Log lines: one record, one line, as text for a person or as JSON for a machine. The only file that configures logging.

A record's message is its event; what belongs to it as data comes as `extra={"fields": {...}}`, or as a struct in a
`FrequentEvent`.

Whoever logs never waits: one thread writes the lines, many at a time. Where nobody takes them (a full pipe, a slow
terminal), a bounded number waits, and what comes beyond is dropped, counted, and said once there is room again.
"""

import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Generic, TextIO, TypeVar

import msgspec

# Some seconds of a busy gateway, and no more than some megabytes.
_WAITING_LINES: Final = 4_096
# To wake a thread costs more than to make a line. So it lets some gather before it writes, unless somebody waits for them.
_GATHER_S: Final = 0.02
# What is written at once: what an empty pipe holds. A busy event loop may let the thread go on only every few milliseconds,
# and each write gives it the word back.
_WRITE_BYTES: Final = 65_536
# At the end what waits is still written, but an end that nobody reads must not be waited for.
_LAST_LINES_S: Final = 2.0

# What uvicorn says when an ASGI app ends an answer before its end. That is how kvgate makes a broken stream visible to the
# client (the connection is closed, so that nothing looks complete), and the request's own line tells the cause.
_DELIBERATE: Final = ("ASGI callable returned without starting response", "ASGI callable returned without completing response")


def configure(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Send every log record of the process to `stream` (default: standard error) and nowhere else.

    level: debug, info, warning or error. log_format: text, json, or auto (text if `stream` is a terminal).
    uvicorn must be started with `log_config=None`, so that it leaves this alone.
    """
    out = stream if stream is not None else sys.stderr
    as_text = log_format == "text" or (log_format == "auto" and out.isatty())
    handler = _handler(out)
    handler.setFormatter(TextLines() if as_text else JsonLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # kvgate writes one line per request itself
    quiet = logging.WARNING if level != "debug" else logging.DEBUG
    for name in ("uvicorn.error", "httpx", "httpcore", "asyncio"):
        logging.getLogger(name).setLevel(max(quiet, logging.getLevelName(level.upper())))
    server = logging.getLogger("uvicorn.error")
    for filter_ in [each for each in server.filters if isinstance(each, _DeliberateEnds)]:
        server.removeFilter(filter_)
    server.addFilter(_DeliberateEnds())


def dropped_lines() -> int:
    """Log lines of this process that were dropped since its start."""
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, Writer))


def _handler(out: TextIO) -> logging.Handler:
    try:
        descriptor = out.fileno()
    except (OSError, ValueError, AttributeError):
        return logging.StreamHandler(out)  # held in memory: it never makes anybody wait
    return Writer(descriptor)


_Facts = TypeVar("_Facts")


class FrequentEvent(Generic[_Facts]):
    """What is logged of every request: too often for logging to look up each time in which thread and line of code it was.

    Where nobody but a `Writer` listens, its thread makes the fields and the line, of many requests in one go. For all others
    one record is made for each level; what is logged is a copy of it with its own instant and fields, and goes the way of all
    records.
    """

    def __init__(self, logger: str, text: str, fields: Callable[[_Facts], msgspec.Struct]) -> None:
        """fields: what is told of the facts, as a struct with `omit_defaults`, so that what is None is left out."""
        self.logger = logger
        self.text = text
        self.fields = fields
        self._logger = logging.getLogger(logger)
        self._like = {
            level: vars(logging.LogRecord(logger, level, __file__, 0, text, (), None))
            for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
        }

    def log(self, level: int, facts: _Facts) -> None:
        """Nobody may change the facts afterwards."""
        if not self._logger.isEnabledFor(level):
            return
        writer = self._only_listener()
        if writer is None:
            self._logger.handle(self.record(level, time.time(), self.fields(facts)))
        elif level >= writer.level:
            writer.take(self, level, facts)

    def record(self, level: int, created: float, fields: msgspec.Struct) -> logging.LogRecord:
        """created: seconds since the epoch."""
        record = object.__new__(logging.LogRecord)
        record.__dict__ = known = self._like[level].copy()
        known["created"] = created
        known["msecs"] = created % 1 * 1000
        known["fields"] = fields
        return record

    def _only_listener(self) -> "Writer | None":
        """Who hears its records, if that is one writer and none is filtered out. Looked up anew: anybody may come to listen."""
        if self._logger.filters:
            return None
        found: Writer | None = None
        logger: logging.Logger | None = self._logger
        while logger is not None:
            for handler in logger.handlers:
                if found is not None or type(handler) is not Writer:
                    return None
                found = handler
            logger = logger.parent if logger.propagate else None
        return found


# A line that is still to be made: of what event, its level, when in seconds since the epoch, and of which facts.
_Taken = tuple[FrequentEvent[Any], int, float, Any]


class Writer(logging.Handler):
    """Makes a line of each record, and has a thread of its own which writes the lines to a file descriptor.

    The descriptor is written to directly: a thread that waits inside of `sys.stderr` would hold its lock for ever.
    """

    def __init__(self, descriptor: int, *, waiting: int = _WAITING_LINES) -> None:
        super().__init__()
        self._had_no_room = 0
        self._not_written = 0
        self._told = 0
        self._descriptor = descriptor
        self._limit = waiting
        self._waiting: deque[bytes | _Taken | threading.Event] = deque()
        self._some = threading.Event()
        self._at_once = threading.Event()
        self._rests = True  # the thread, or there is none yet: whoever logs has to wake it
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @property
    def dropped(self) -> int:
        """Lines that found no room, or that nobody would take."""
        return self._had_no_room + self._not_written

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the lock of other handlers, as what is shared here is one append, and without filters."""
        self.emit(record)
        return True

    def take(self, event: FrequentEvent[_Facts], level: int, facts: _Facts) -> None:
        """What `handle` would do with the event's record, without one."""
        if len(self._waiting) >= self._limit:
            self._had_no_room += 1
            return
        self._waiting.append((event, level, time.time(), facts))
        if self._rests:
            self._wake()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._waiting) >= self._limit:
            self._had_no_room += 1
        else:
            self._put(self._line(record))

    def flush(self) -> None:
        """Wait until what was logged so far is written, for a bounded time. The interpreter's end calls it, too."""
        if self._thread is not None:
            reached = threading.Event()
            self._put(reached)
            self._at_once.set()
            reached.wait(_LAST_LINES_S)

    def _put(self, entry: "bytes | _Taken | threading.Event") -> None:
        self._waiting.append(entry)
        if self._rests:
            self._wake()

    def _wake(self) -> None:
        self._rests = False
        self._some.set()
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
                    self._thread.start()

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            line = self.format(record)
        except Exception:
            line = f"a log record of {record.name} ({record.filename}:{record.lineno}) cannot be written as a line"
        return (line + "\n").encode("utf-8", "backslashreplace")

    def _run(self) -> None:
        while True:
            self._some.wait()
            self._at_once.wait(_GATHER_S)
            self._at_once.clear()
            if not self._waiting:
                # Only now: while lines keep coming, whoever logs need not wake anybody.
                self._some.clear()
                self._rests = True
                if self._waiting:  # it came before that could be seen
                    self._wake()
            while self._waiting:
                self._write_some()
            self._tell_dropped()

    def _write_some(self) -> None:
        """Write the lines that came first, up to one after which somebody waits."""
        data, is_json = bytearray(), type(self.formatter) is JsonLines
        while self._waiting and len(data) < _WRITE_BYTES:
            entry = self._waiting.popleft()
            if isinstance(entry, tuple):
                event, level, created, facts = entry
                try:
                    fields = event.fields(facts)
                except Exception:  # nobody would hear of it, and the thread must go on
                    data += f"what {event.logger} logged as {event.text} cannot be written as a line\n".encode()
                    continue
                if not (is_json and _add_json(data, created, level, event.logger, event.text, fields)):
                    data += self._line(event.record(level, created, fields))
            elif isinstance(entry, bytes):
                data += entry
            else:
                self._write(data)
                self._tell_dropped()
                entry.set()
                return
        self._write(data)

    def _write(self, data: bytes | bytearray) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # whoever shares the pipe has made it so
                time.sleep(0.05)
            except OSError:  # nobody is there any more, or the disk is full
                self._not_written += data.count(b"\n")
                return

    def _tell_dropped(self) -> None:
        dropped = self.dropped
        if dropped > self._told:
            text = f"{dropped - self._told} log lines were dropped, because nobody took them in time"
            self._told = dropped
            self._write(self._line(logging.LogRecord("kvgate", logging.WARNING, __file__, 0, text, None, None)))


class JsonLines(logging.Formatter):
    """One JSON object a record: time (RFC 3339, UTC), level, logger, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = record.__dict__.get("fields")
        if isinstance(fields, msgspec.Struct) and not record.exc_info:
            line = bytearray()
            if _add_json(line, record.created, record.levelno, record.name, record.getMessage(), fields):
                return line[:-1].decode()
        whole: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        whole |= {name: value for name, value in fields_of(record).items() if name not in whole}
        if record.exc_info:
            whole["exception"] = self.formatException(record.exc_info)
        return json.dumps(whole, default=str, separators=_COMPACT)


_COMPACT: Final = (",", ":")
_encode_into: Final = msgspec.json.Encoder().encode_into
_COMMA: Final = ord(",")


def _add_json(lines: bytearray, now: float, level: int, logger: str, event: str, fields: msgspec.Struct) -> bool:
    """Append the line of a struct, with its end; not where it is not plain ASCII, of which alone it is certain that it
    stays one line. Returns whether it did.

    now: seconds since the epoch.
    """
    begins = len(lines)
    lines += _beginning(int(now * 1000), level, logger, event)
    goes_on = len(lines)
    try:
        _encode_into(fields, lines, goes_on)
        is_plain = lines[goes_on:].isascii()
    except Exception:  # half of a pair of surrogates, a number of more than 64 bits: what the slower way can tell
        is_plain = False
    if not is_plain:
        del lines[begins:]
        return False
    lines[goes_on] = _COMMA  # their object goes on with the one that has begun
    lines += b"\n"
    return True


@lru_cache(maxsize=16)
def _beginning(milliseconds: int, level: int, logger: str, event: str) -> bytes:
    """What stands before the fields of the lines of one instant."""
    second, millisecond = divmod(milliseconds, 1000)
    return b"".join((_start_of(second), _MILLISECONDS[millisecond], _source(level, logger, event)))


@lru_cache(maxsize=16)
def _source(level: int, logger: str, event: str) -> bytes:
    said = {"level": logging.getLevelName(level).lower(), "logger": logger, "event": event}
    return f'","{json.dumps(said, separators=_COMPACT)[2:-1]}'.encode()


class TextLines(logging.Formatter):
    """Time, level, event, then name=value; control characters are escaped, so that no client can forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(value)}" for name, value in fields_of(record).items())
        line = f"{_time(record)} {record.levelname.lower():7} {_escaped(record.getMessage())}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _DeliberateEnds(logging.Filter):
    """Turns uvicorn's errors about answers that kvgate broke off on purpose into debug records."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith(_DELIBERATE):
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """What belongs to a record as data."""
    fields = record.__dict__.get("fields")
    if isinstance(fields, msgspec.Struct):
        return {name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None}
    return fields if isinstance(fields, Mapping) else {}


# The ends of all times.
_MILLISECONDS: Final = [b".%03dZ" % number for number in range(1000)]


def _time(record: logging.LogRecord) -> str:
    second, millisecond = divmod(int(record.created * 1000), 1000)
    return _second(second) + _MILLISECONDS[millisecond].decode()


@lru_cache(maxsize=2)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=2)
def _start_of(second: int) -> bytes:
    """How a line of that second begins."""
    return f'{{"time":"{_second(second)}'.encode()


def _quoted(value: object) -> str:
    """A field's value in text: numbers and plain words as they are, anything else as JSON."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    text = str(value)
    if text and text.isprintable() and not any(character in ' "=' for character in text):
        return text
    return json.dumps(text)


def _escaped(text: str) -> str:
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in text)
