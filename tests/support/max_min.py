"""What a fair division would have given: a fluid server that knows nothing of books, blocks at once, or turns.

Work arrives in block-seconds. At every instant the server's rate is divided among those who have work left, by weight, and
what one cannot use goes to the others: weighted max-min fairness.
"""

from collections.abc import Mapping, Sequence


def fair_service(
    arrivals: Sequence[tuple[float, str, float]], *, rate: float, weights: Mapping[str, float], until: float
) -> dict[str, float]:
    """Block-seconds served to each by `until`. arrivals: (time, who, block-seconds) by time; rate: blocks."""
    left = dict.fromkeys(weights, 0.0)
    served = dict.fromkeys(weights, 0.0)
    now = 0.0
    for at, who, work in [*arrivals, (until, "", 0.0)]:
        until_then = min(at, until)
        while now < until_then and any(amount > 0 for amount in left.values()):
            busy = {name for name, amount in left.items() if amount > 0}
            whole = sum(weights[name] for name in busy)
            speed = {name: rate * weights[name] / whole for name in busy}
            step = min(until_then - now, *(left[name] / speed[name] for name in busy))
            for name in busy:
                part = min(left[name], speed[name] * step)
                served[name] += part
                left[name] = 0.0 if left[name] - part < 1e-9 else left[name] - part
            now += step
        now = max(now, until_then)
        if at >= until:
            break
        left[who] += work
    return served
