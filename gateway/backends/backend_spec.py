"""A backend as the operator described it, before anybody has asked it anything."""

from dataclasses import dataclass, field

from gateway.backends.capacity import GivenCapacity
from gateway.backends.engines import AUTO
from gateway.core.names import BackendName


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What the operator said of one backend. url: as `clean_url` leaves it. engine: a name of the table, or auto.

    rank: of several engines behind the address, the one that is meant; None: there is one, or nobody knows. metrics_url: of
    the engine's own page of metrics, where that is at another address.
    """

    name: BackendName
    url: str
    engine: str = AUTO
    key: str | None = field(default=None, repr=False)
    rank: int | None = None
    metrics_url: str | None = None
    given: GivenCapacity = field(default_factory=GivenCapacity)
