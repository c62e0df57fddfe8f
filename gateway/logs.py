"""Log lines: one record, one line, as text for a person or as JSON for a machine. The only file that configures logging.

A record's message is its event; what belongs to it as data comes as `extra={"fields": {...}}`.

Whoever logs never waits: one thread writes the lines. Where nobody takes them (a full pipe, a slow terminal), a bounded
number waits, and what comes beyond is dropped, counted, and said once there is room again.
"""

import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

# Some seconds of a busy gateway, and no more than some megabytes.
_WAITING_RECORDS: Final = 4_096
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


class Writer(logging.Handler):
    """Hands records to a thread of its own, which formats and writes them to a file descriptor.

    The descriptor is written to directly: a thread that waits inside of `sys.stderr` would hold its lock for ever.
    dropped: records that found no room.
    """

    def __init__(self, descriptor: int, *, waiting: int = _WAITING_RECORDS) -> None:
        super().__init__()
        self.dropped = 0
        self._told = 0
        self._descriptor = descriptor
        self._limit = waiting
        self._waiting: deque[logging.LogRecord | threading.Event] = deque()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._waiting) >= self._limit:
            self.dropped += 1
        else:
            self._put(record)

    def flush(self) -> None:
        """Wait until what was logged so far is written, for a bounded time. The interpreter's end calls it, too."""
        if self._thread is not None:
            reached = threading.Event()
            self._put(reached)
            reached.wait(_LAST_LINES_S)

    def _put(self, entry: logging.LogRecord | threading.Event) -> None:
        self._waiting.append(entry)
        if not self._some.is_set():
            self._some.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._some.wait()
            self._some.clear()
            while self._waiting:
                entry = self._waiting.popleft()
                if isinstance(entry, logging.LogRecord):
                    self._write(entry)
                else:
                    self._tell_dropped()
                    entry.set()
            self._tell_dropped()

    def _write(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            line = f"a log record of {record.name} ({record.filename}:{record.lineno}) cannot be written as a line"
        data = (line + "\n").encode("utf-8", "backslashreplace")
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # whoever shares the pipe has made it so
                time.sleep(0.05)
            except OSError:  # nobody is there any more, or the disk is full
                self.dropped += 1
                return

    def _tell_dropped(self) -> None:
        dropped = self.dropped
        if dropped > self._told:
            text = f"{dropped - self._told} log lines were dropped, because nobody took them in time"
            self._told = dropped
            self._write(logging.LogRecord("kvgate", logging.WARNING, __file__, 0, text, None, None))


class JsonLines(logging.Formatter):
    """One JSON object a record: time (RFC 3339, UTC), level, logger, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in _fields(record).items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Time, level, event, then name=value; control characters are escaped, so that no client can forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
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


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields = record.__dict__.get("fields")
    return fields if isinstance(fields, Mapping) else {}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
