"""Reading traces: an access log of kvgate in its JSON form, or a CSV; either also gzipped. The one file here that does I/O.

It promises: a trace, or a TraceError that names the file and the line; never another exception. Lines of a log that are no
requests are skipped and counted.
"""

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from gateway.replay.csv_rows import read_csv_rows
from gateway.replay.log_lines import read_log_lines
from gateway.replay.trace import Recorded, Request, RowError, Trace

_GZIP: Final = b"\x1f\x8b"
_LONGEST_LINE: Final = 1 << 20
_FIRST_LINES: Final = 100
_WHAT: Final = (
    "neither a log of kvgate in its JSON form (KVGATE_LOG_FORMAT=json) nor a CSV that begins with a line of names, like"
    " arrival_s,input_tokens,output_tokens"
)


class TraceError(ValueError):
    """What cannot be read, in one line: the file, the line and why."""

    def __init__(self, path: Path, line: int | None, message: str) -> None:
        super().__init__(f"{path}: {message}" if line is None else f"{path}:{line}: {message}")


def read_trace(paths: Iterable[Path], *, pool: str | None = None, on_line: Callable[[], None] | None = None) -> Trace:
    """All files as one trace, their requests in the order of their arrival. pool: of a log, those of one pool only.
    on_line: called every thousand lines.

    Several CSVs are laid over each other: each begins at its own 0. Several logs are laid side by side by their times.
    Raises TraceError.
    """
    trace = Trace()
    files = list(paths)
    for number, path in enumerate(files):
        before = len(trace)
        try:
            with _open(path) as file:
                prefix = f"{number}:" if len(files) > 1 else ""
                _read_file(path, _lines(path, file, on_line), trace, prefix=prefix, pool=pool)
        except (OSError, EOFError, zlib.error) as error:
            text = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise TraceError(path, None, f"cannot be read: {text}") from None
        if len(trace) == before:
            raise TraceError(path, None, f"there is no request in it{_skipped(trace)}")
    try:
        trace.finish()
    except ValueError as error:
        raise TraceError(files[0], None, str(error)) from None
    return trace


def _skipped(trace: Trace) -> str:
    words = [f"{count} {what}" for what, count in trace.skipped.items()]
    return f" ({', '.join(words)})" if words else ""


def _open(path: Path) -> io.BufferedReader:
    file = path.open("rb")
    if file.peek(2)[:2] != _GZIP:
        return file
    return io.BufferedReader(gzip.GzipFile(fileobj=file))


def _read_file(path: Path, lines: Iterator[tuple[int, bytes]], trace: Trace, *, prefix: str, pool: str | None) -> None:
    first: list[tuple[int, bytes]] = []
    for number, line in lines:
        first.append((number, line))
        is_log, is_csv = line.lstrip()[:1] == b"{", b"input_tokens" in line
        if is_log or is_csv:
            if len(trace) and is_log != trace.is_log:
                raise TraceError(path, None, "a log and a CSV cannot be replayed together: their times have nothing in common")
            trace.is_log = is_log
            rows: Iterator[tuple[Request, Recorded | None]] = (
                read_log_lines(chain(first, lines), trace.skipped, pool=pool)
                if is_log
                else read_csv_rows(chain([first[-1]], lines), prefix)
            )
            try:
                for request, recorded in rows:
                    trace.add(request, recorded)
            except RowError as error:
                raise TraceError(path, error.line, str(error)) from None
            return
        if len(first) == _FIRST_LINES:
            break
    raise TraceError(path, 1 if first else None, f"this is {_WHAT}" if first else "it is empty")


def _lines(path: Path, file: io.BufferedReader, on_line: Callable[[], None] | None) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, by their number from 1 on."""
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise TraceError(path, number, f"a line of more than {_LONGEST_LINE} bytes is no line of a trace")
        if on_line is not None and number % 1000 == 0:
            on_line()
        if not line.isspace():
            yield number, line
