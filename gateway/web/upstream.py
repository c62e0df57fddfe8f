"""One backend as the data plane reaches it: its connections, its name in `Host`, its base path and its key."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.relay.headers import CREDENTIALS, Header, onward_headers
from gateway.relay.upstream import UpstreamExchange
from gateway.relay.upstream_pool import UpstreamPool


@dataclass(frozen=True, slots=True)
class Upstream:
    """host: what goes into `Host`. base_path: what stands before every path, b"" or b"/prefix". bearer: the backend's key.

    pinned: headers of ours that say which of several engines behind the address is meant; a caller's own are dropped.
    """

    pool: UpstreamPool
    host: bytes
    base_path: bytes
    bearer: str | None
    pinned: tuple[Header, ...] = ()

    async def send(
        self,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: Sequence[Header],
        body: bytes,
        *,
        key_was_ours: bool = False,
    ) -> UpstreamExchange:
        """Send a caller's request on. path: as it stands in a request line, percent-encoded; it begins with a slash.

        key_was_ours: callers' keys are checked here, so none of them goes on. The backend's key is used only there, or where
        the caller brought no credential of its own. Raises UpstreamFailed.
        """
        authorization = None
        if self.bearer is not None and (key_was_ours or not any(name.lower() in CREDENTIALS for name, _ in headers)):
            authorization = b"Bearer " + self.bearer.encode()
        onward = onward_headers(headers, host=self.host, authorization=authorization, keeps_credentials=not key_was_ours)
        if self.pinned:
            names = {name.lower() for name, _ in self.pinned}
            onward = [*(header for header in onward if header[0].lower() not in names), *self.pinned]
        target = self.base_path + path + (b"?" + query if query else b"")
        return await self.pool.send(method, target, onward, body)
