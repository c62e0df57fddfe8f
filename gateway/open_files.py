"""Open files: how many connections they allow, and room for all of them before the first comes."""

import contextlib
import fcntl
import os
import resource
from typing import Final

# Open files that are nobody's connection: listeners, probes, the log, and room for operators.
_OTHER_FILES: Final = 256
_MOST_CONNECTIONS: Final = 16_384


def connections_allowed() -> int:
    """Connections for which there are open files: each may need one more, to its engine.

    The soft limit is raised to the hard one first: it is low for the sake of programs that use select(), which none of
    ours does.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return min(max((soft - _OTHER_FILES) // 2, soft // 4, 1), _MOST_CONNECTIONS)


def make_room_for(connections: int) -> None:
    """Let the kernel's table of our open files be as large from now on as so many connections need, or as the limit allows.

    It begins with 256 places and doubles when it is full. In a process of several threads Linux then waits until none can be
    reading the old table (`expand_fdtable` in fs/file.c), for 10 to 40 ms, and all streams with it. It never shrinks.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2 * connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY:
        files = min(files, soft)
    with contextlib.suppress(OSError), open(os.devnull, "rb") as anything:
        os.close(fcntl.fcntl(anything, fcntl.F_DUPFD_CLOEXEC, files - 1))
