"""One Date on every answer, the engine's where it has one: the server in front adds none of its own."""

import pytest

from support.bench import Bench
from support.http_client import Connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

DATA = [
    ("GET", "/health", b"", 200),
    ("GET", "/ready", b"", 200),
    ("GET", "/v1/models", b"", 200),
    ("GET", "/version", b"", 200),
    ("OPTIONS", "/v1/models", b"", 204),
    ("GET", "/nothing", b"", 404),
    ("GET", "/v1/chat/completions", b"", 405),
    ("POST", "/v1/chat/completions", b"nonsense", 400),
    ("POST", "/v1/completions", b'{"prompt": [1], "max_tokens": 16}', 200),
]
ADMIN = [("GET", "/metrics", b"", 200), ("GET", "/kvgate/state", b"", 200), ("GET", "/nothing", b"", 404)]


@pytest.mark.parametrize(("method", "path", "body", "status"), DATA)
async def test_an_answer_on_the_inference_port_has_one_date(
    bench: Bench, method: str, path: str, body: bytes, status: int
) -> None:
    async with await Connection.open(bench.gateway.url) as connection:
        answer = await connection.ask(method, path, body)
    assert (answer.status, len(answer.head.all("date"))) == (status, 1)


@pytest.mark.parametrize(("method", "path", "body", "status"), ADMIN)
async def test_an_answer_on_the_admin_port_has_one_date(bench: Bench, method: str, path: str, body: bytes, status: int) -> None:
    async with await Connection.open(bench.gateway.admin_url) as connection:
        answer = await connection.ask(method, path, body)
    assert (answer.status, len(answer.head.all("date"))) == (status, 1)
