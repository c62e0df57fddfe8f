"""Patience: how long a caller will wait for an answer, as SDKs say it in their headers."""

from typing import Final

from gateway.web.asked import PATIENCE, Asked

# Of that, what is kept for our answer to reach a caller before it gives up by itself: a part, and at most so much.
_LAST_PART: Final = 0.05
_LAST_S: Final = 1.0


def usable_patience(asked: Asked) -> float | None:
    """Seconds from the arrival of its head within which a caller can still be told that it waits in vain; None: no end."""
    patience_s = patience_of(asked)
    return None if patience_s is None else patience_s - min(patience_s * _LAST_PART, _LAST_S)


def patience_of(asked: Asked) -> float | None:
    """Seconds that the caller will wait, the fewest that it says; None if it says none. What is not a positive number says
    nothing."""
    said: list[float] = []
    for name in PATIENCE:
        value = asked.get(name)
        if value is None:
            continue
        try:
            seconds = float(value)
        except ValueError:
            continue
        # A comparison with NaN is false, so NaN is dropped here as well.
        if 0 < seconds < float("inf"):
            said.append(seconds)
    return min(said, default=None)
