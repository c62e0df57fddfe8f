"""One backend as the data plane reaches it: its connections, its name in `Host`, its base path and its key."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.relay.headers import CREDENTIALS, UNENCODED, Header, onward_headers
from gateway.relay.upstream import UpstreamExchange
from gateway.relay.upstream_pool import UpstreamPool
from gateway.relay.upstream_request import WireRequest, checked_lines, request_line, with_body
from gateway.web.inference_head import InferenceHead

# The targets in use are few; those that callers make up by their queries take 32 KiB at most.
_MOST_OPENINGS: Final = 64
_TARGET_BYTES: Final = 256


@dataclass(slots=True, eq=False)
class Upstream:
    """host: what goes into `Host`. base_path: what stands before every path, b"" or b"/prefix". bearer: the backend's key.

    pinned: headers of ours that say which of several engines behind the address is meant; a caller's own are dropped.
    """

    pool: UpstreamPool
    host: bytes
    base_path: bytes
    bearer: str | None
    pinned: tuple[Header, ...] = ()
    _openings: dict[bytes, bytes] = field(default_factory=dict, init=False, repr=False)
    _ours: frozenset[bytes] = field(init=False, repr=False)
    _ours_and_keys: frozenset[bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ours = frozenset(name.lower() for name, _ in self.pinned)
        self._ours_and_keys = self._ours | CREDENTIALS

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

    def call(self, head: InferenceHead, body: bytes, *, key_was_ours: bool = False) -> WireRequest:
        """What `send` would send of a call of an inference route; what was worked out for its head before is not again."""
        lines = self._opening(head.target) + head.onward_lines(self._ours_and_keys if key_was_ours else self._ours)
        if self.bearer is not None and (key_was_ours or not head.credentials):
            lines += checked_lines([(b"authorization", b"Bearer " + self.bearer.encode())])
        if self.pinned:
            lines += checked_lines(self.pinned)
        return with_body(lines, body)

    def _opening(self, target: bytes) -> bytes:
        """What a request for a target begins with, whosever it is."""
        opening = self._openings.get(target)
        if opening is None:
            opening = request_line(b"POST", self.base_path + target) + checked_lines([(b"host", self.host), UNENCODED])
            if len(self._openings) < _MOST_OPENINGS and len(target) <= _TARGET_BYTES:
                self._openings[target] = opening
        return opening
