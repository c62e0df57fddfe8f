"""The ids that rooms exchange. Distinct types, so that a lane's name cannot be passed where a backend's is meant."""

from typing import NewType

BackendName = NewType("BackendName", str)
PoolName = NewType("PoolName", str)
LaneName = NewType("LaneName", str)
TenantName = NewType("TenantName", str)
TicketId = NewType("TicketId", int)

STANDARD_LANE = LaneName("standard")
ANONYMOUS = TenantName("anonymous")
