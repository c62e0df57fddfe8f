"""Requests as bytes, written exactly as told, and what came back of them."""

import asyncio
import json
import re

from support.bench import CHAT, Bench, chat_body
from support.http_client import PATIENCE_S, Connection


def request(
    line: str = f"POST {CHAT} HTTP/1.1",
    headers: tuple[bytes, ...] = (),
    body: bytes | None = None,
    *,
    host: str | None = "gate.example",
    tag: str = "",
    framed: bool = True,
) -> bytes:
    """The bytes of a request, exactly as told."""
    body = json.dumps(chat_body(16)).encode() if body is None else body
    fields = [line.encode("latin-1")]
    fields += [b"Host: " + host.encode()] if host is not None else []
    fields += [b"X-Tag: " + tag.encode()] if tag else []
    fields += [b"Content-Length: %d" % len(body)] if framed else []
    return b"\r\n".join([*fields, *headers]) + b"\r\n\r\n" + body


async def everything(bench: Bench, *pieces: bytes) -> bytes:
    """Send the pieces and read until the gateway closes."""
    async with await Connection.open(bench.gateway.url) as client:
        for piece in pieces:
            await client.send_raw(piece)
        async with asyncio.timeout(PATIENCE_S):
            return await client.reader.read()


def statuses_in(raw: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"^HTTP/1\.1 (\d{3}) ", raw, re.MULTILINE)]


async def refusals(bench: Bench, port: str = "data") -> dict[str, float]:
    metrics = await bench.gateway.metrics()
    return {
        labels["reason"]: value
        for name, labels, value in metrics.samples
        if name == "kvgate_connections_refused_total" and labels["port"] == port
    }


async def refused_once_more(bench: Bench, before: dict[str, float], reason: str) -> None:
    after = await refusals(bench)
    assert after.get(reason, 0) - before.get(reason, 0) >= 1, after
