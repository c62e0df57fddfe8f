"""What one scenario showed of one proxy, as it travels from the load's process to the report."""

from typing import Final

import msgspec

NOT_SEEN_S: Final = 99.0
"""In place of the time until the engine saw hang-ups, where it had not seen all of them after seconds."""


class Quantiles(msgspec.Struct, frozen=True):
    p50: float
    p99: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """connections: of the load, most_open: the most of them that waited for an answer or its end at once.

    ok: whole answers; verbatim: those that came byte for byte as they were sent. errors: answers that were not whole, and
    failures to connect; first_errors quotes some.

    proxy_cpu_s: user and system seconds of the proxy and all its children. resident: their bytes before the load, and the most
    of them in a scenario that asks once. lag: from the engine's sending of a chunk to its arrival. hang_up_s: until the engine
    had seen all clients leave. foreign_cores: how many cores others than this benchmark used meanwhile.
    """

    scenario: str
    connections: int = 0
    most_open: int = 0
    ok: int = 0
    verbatim: int = 0
    errors: int = 0
    first_errors: tuple[str, ...] = ()
    chunks: int = 0
    wall_s: float = 0.0
    load_cpu_s: float = 0.0
    engine_cpu_s: float = 0.0
    proxy_cpu_s: float | None = None
    resident_before_bytes: int | None = None
    resident_most_bytes: int | None = None
    latency_us: Quantiles | None = None
    ttft_us: Quantiles | None = None
    lag_us: Quantiles | None = None
    hang_up_s: float | None = None
    foreign_cores: float | None = None

    @property
    def has_figures(self) -> bool:
        """Too many failures make every cost per answer meaningless."""
        return self.errors * 10 <= self.ok or self.hang_up_s is not None


def failed(scenario: str, why: str) -> Measured:
    return Measured(scenario=scenario, errors=1, first_errors=(why,))
