"""Log lines: one record, one line, as text for a person or as JSON for a machine. The only file that configures logging.

A record's message is its event; what belongs to it as data comes as `extra={"fields": {...}}`.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

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
    handler = logging.StreamHandler(out)
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
