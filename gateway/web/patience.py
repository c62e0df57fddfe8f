"""Patience: how long a caller will wait for an answer, as SDKs say it in their headers."""

from typing import Final

from gateway.relay.headers import header_value
from gateway.web.error_answers import Headers

# Seconds that SDKs say they will wait for an answer. The smallest of those sent counts.
_PATIENCE: Final = (b"x-stainless-read-timeout", b"x-stainless-timeout", b"x-request-timeout")
# Of that, what is kept for our answer to reach a caller before it gives up by itself: a part, and at most so much.
_LAST_PART: Final = 0.05
_LAST_S: Final = 1.0


def usable_patience(headers: Headers) -> float | None:
    """Seconds from the arrival of its head within which a caller can still be told that it waits in vain; None: no end."""
    patience_s = patience_of(headers)
    return None if patience_s is None else patience_s - min(patience_s * _LAST_PART, _LAST_S)


def patience_of(headers: Headers) -> float | None:
    """Seconds that the caller will wait, None if it does not say. What is not a positive number says nothing."""
    said: list[float] = []
    for name in _PATIENCE:
        value = header_value(headers, name)
        try:
            seconds = float(value) if value is not None else 0.0
        except ValueError:
            continue
        # A comparison with NaN is false, so NaN is dropped here as well.
        if 0 < seconds < float("inf"):
            said.append(seconds)
    return min(said, default=None)
