"""TenantTerms: what one tenant is entitled to. Where it comes from (a keys file, nothing at all) is an edge's affair.

Two tenants of one name are one tenant: the terms that came with its latest ticket hold.
"""

from dataclasses import dataclass, field

from gateway.core.names import ANONYMOUS, LaneName, TenantName


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """One tenant's share, caps and rights; caps are of this gateway, over all its pools. None: no such cap.

    weight: its share among the tenants that wait in the same lane, relative to theirs; above 0.
    cap_blocks: charged blocks that it may hold at once; a request larger than that is never served. At least 1.
    cap_requests: its requests at once, running and waiting; at least 1.
    queue_share: part of a lane's queue that it may fill, above 0 and at most 1; always at least one place.
    lanes: the lanes that it may use, the first of them where nothing else decides; empty: every lane that is open to all.
    priority: of its requests; the lower number goes first, as in vLLM. may_set_priority: a caller may send a better one.
    Raises ValueError, with a sentence, for what cannot be.
    """

    name: TenantName = ANONYMOUS
    weight: float = 1.0
    cap_blocks: int | None = None
    cap_requests: int | None = None
    queue_share: float = 1.0
    lanes: tuple[LaneName, ...] = ()
    priority: int = 0
    may_set_priority: bool = False
    has_caps: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"the weight of tenant {self.name} must be a number above 0, not {self.weight}")
        if self.cap_blocks is not None and self.cap_blocks < 1:
            raise ValueError(f"the block cap of tenant {self.name} must be at least 1, not {self.cap_blocks}")
        if self.cap_requests is not None and self.cap_requests < 1:
            raise ValueError(f"the request cap of tenant {self.name} must be at least 1, not {self.cap_requests}")
        if not 0 < self.queue_share <= 1:
            raise ValueError(f"the queue share of tenant {self.name} must be above 0 and at most 1, not {self.queue_share}")

        object.__setattr__(self, "has_caps", self.cap_blocks is not None or self.cap_requests is not None)

    def priority_of(self, sent: int | None) -> int:
        """The priority of a request with which the caller sent one, or none. Anybody may step back, not everybody forward."""
        if sent is None:
            return self.priority
        return sent if self.may_set_priority else max(sent, self.priority)


ANONYMOUS_TERMS = TenantTerms()
