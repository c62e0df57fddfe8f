"""`kvgate serve` as a child of `kvgate demo`: the same command, but it ends when its standard input does.

So it never outlives the demo, even one that was killed without a chance to clean up.
"""

import os
import signal
import sys
import threading

from gateway.cli import main


def _end_with_standard_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    main()
