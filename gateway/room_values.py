"""Room values: what the rooms receive of the settings: each the few values that it needs, never the whole."""

import ssl
from urllib.parse import quote, urlsplit

from gateway.backends.ranks import RANK_HEADER
from gateway.backends.view import BackendView
from gateway.core.decisions import Mode
from gateway.core.lane_table import LaneTable
from gateway.core.offer import DefaultOutput, Overlong
from gateway.relay.upstream_pool import UpstreamPool
from gateway.relay.watchdog import Clocks
from gateway.settings import Settings
from gateway.web.choices import Choices
from gateway.web.door import DoorLimits
from gateway.web.upstream import Upstream


def choices(settings: Settings, lanes: LaneTable) -> Choices:
    """What one request meets of them on its way."""
    output = settings.default_output
    return Choices(
        mode=Mode(settings.mode),
        default_output=DefaultOutput(tokens=output if isinstance(output, int) else None, require=output == "require"),
        overlong=Overlong(settings.overlong),
        ask_usage={"auto": None, "on": True, "off": False}[settings.ask_usage],
        max_body_bytes=settings.max_body_bytes,
        upload_timeout_s=settings.upload_timeout_s,
        queue_timeout_s=settings.queue_timeout_s,
        ttft_target_s=settings.ttft_target_s,
        clocks=Clocks(
            first_token_s=settings.first_token_timeout_s,
            stall_s=settings.stall_timeout_s,
            total_s=settings.total_timeout_s,
            send_s=settings.send_timeout_s,
        ),
        pass_through=frozenset(settings.pass_through),
        queue_requests=settings.queue_requests,
        early_commit_s=settings.early_commit_s,
        lanes=lanes,
    )


def door_limits(settings: Settings, *, connections: int) -> DoorLimits:
    """What the door lets in. connections: clients' connections, at most."""
    return DoorLimits(
        header_bytes=settings.max_header_bytes,
        headers=settings.max_headers,
        url_bytes=settings.max_url_bytes,
        header_s=settings.header_timeout_s,
        idle_s=settings.idle_timeout_s,
        pipelined=settings.max_pipelined,
        connections=connections,
        per_address=settings.max_connections_per_address,
    )


def upstream_to(view: BackendView, settings: Settings, tls: ssl.SSLContext, key: str | None, rank: int | None) -> Upstream:
    """The way to one backend. tls: for https. key: ours, for who brings none. rank: of several engines, the one."""
    parts = urlsplit(view.url)
    assert parts.hostname is not None, "settings take no URL without a host"
    is_tls = parts.scheme == "https"
    pool = UpstreamPool(
        parts.hostname,
        parts.port or (443 if is_tls else 80),
        backend=view.name,
        tls=tls if is_tls else None,
        connect_timeout_s=settings.connect_timeout_s,
    )
    return Upstream(
        pool,
        host=parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii"),
        base_path=quote(parts.path, safe="/%:@!$&'()*+,;=~").encode(),
        bearer=key,
        pinned=() if rank is None else ((RANK_HEADER, str(rank).encode()),),
    )
