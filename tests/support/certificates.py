"""Engines with certificates: good ones, and each kind of bad one."""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import trustme

from support.fake_engine import FakeEngine
from support.fake_upstream import FakeUpstream


def issue(authority: trustme.CA, *names: str, **dates: datetime) -> trustme.LeafCert:
    """A certificate for these names or addresses. dates: not_before, not_after."""
    untyped: Any = authority  # one argument of its method has no type
    certificate: trustme.LeafCert = untyped.issue_cert(*names, **dates)
    return certificate


@dataclass(frozen=True, slots=True)
class Wrong:
    """A certificate that must not be trusted. words: of which one is in what is said about it."""

    issue: Callable[[trustme.CA], trustme.LeafCert]
    words: str


UNTRUSTED: Mapping[str, Wrong] = {
    "another authority": Wrong(
        lambda authority: issue(trustme.CA(), "127.0.0.1"), "self-signed|unable to get local issuer|unable to get issuer"
    ),
    "another name": Wrong(lambda authority: issue(authority, "elsewhere.example"), "IP address mismatch|Hostname mismatch"),
    "expired": Wrong(
        lambda authority: issue(authority, "127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=2)), "expired"
    ),
    "not yet valid": Wrong(
        lambda authority: issue(
            authority,
            "127.0.0.1",
            not_before=datetime.now(UTC) + timedelta(days=1),
            not_after=datetime.now(UTC) + timedelta(days=2),
        ),
        "not yet valid",
    ),
}


def serving(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@asynccontextmanager
async def engine_with(certificate: trustme.LeafCert) -> AsyncIterator[FakeUpstream]:
    """A fake vLLM that shows this certificate."""
    async with FakeUpstream(default=FakeEngine(), tls=serving(certificate)) as fake:
        yield fake
