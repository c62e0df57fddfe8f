"""Paths that go on without a hold: they take no KV, or the operator opened them knowing that they may.

Counting and version routes cost the engine no KV cache, so they pass as they are. Nothing here is a request in the sense
of the tally; bodies, clocks and departures are bounded all the same.
"""

import asyncio
import json
from typing import Any, Final

from gateway.core.errors import GatewayError, InvalidRequest, Rejected, UpstreamFailed, UpstreamStage
from gateway.core.outcomes import RejectReason
from gateway.dialects import DIALECTS
from gateway.relay.downstream import AsgiDownstream, Receive, Send
from gateway.relay.headers import answer_headers
from gateway.relay.stream import is_event_stream
from gateway.web import error_answers
from gateway.web.rooms import Rooms
from gateway.web.upstream import Upstream

OPEN_PATHS: Final = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens", "/version"})


async def pass_through(rooms: Rooms, scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Relay one uncounted call to the first healthy backend that serves its model."""
    client = AsgiDownstream(receive, send)
    task = asyncio.current_task()
    assert task is not None, "an ASGI server calls its application in a task"
    client.on_gone(lambda: _cancel(task))
    try:
        await _relay(rooms, scope, client)
    except GatewayError as error:
        client.on_gone(None)
        await _answer(rooms, client, error)
    except asyncio.CancelledError:
        if not client.gone:
            raise
        task.uncancel()
    finally:
        client.unwatch()


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


async def _relay(rooms: Rooms, scope: dict[str, Any], client: AsgiDownstream) -> None:
    choices = rooms.choices
    try:
        async with asyncio.timeout(choices.upload_timeout_s):
            body = await client.read_body(choices.max_body_bytes)
    except TimeoutError:
        raise InvalidRequest("the request body did not arrive in time", reason=RejectReason.UPLOAD_TIMEOUT) from None
    client.watch()
    name, upstream = _choose(rooms, body)
    exchange = await upstream.send(
        scope["method"].encode(), scope["path"], scope.get("query_string", b""), scope["headers"], body
    )
    head_sent = False
    try:
        async with asyncio.timeout(choices.clocks.total_s):
            head = await exchange.head()
            headers = answer_headers(head.headers, is_event_stream=is_event_stream(head), length_changes=False)
            head_sent = True
            await client.write_head(head.status, headers)
            while data := await exchange.read():
                await client.write_body(data)
            await client.finish()
    except TimeoutError:
        if not head_sent:
            raise UpstreamFailed(name, UpstreamStage.TOTAL, "an uncounted call took too long") from None
        client.abort()
    except UpstreamFailed:
        if not head_sent:
            raise
        client.abort()
    finally:
        exchange.abort(None)


def _choose(rooms: Rooms, body: bytes) -> tuple[Any, Upstream]:
    pool = rooms.roster.pool_for(_model_of(body))
    views = pool.backends if pool is not None else rooms.roster.views()
    view = next((view for view in views if view.healthy), None)
    if view is None:
        raise Rejected("no healthy backend", reason=RejectReason.NO_BACKEND, retry_after_s=None)
    return view.name, rooms.upstreams[view.name]


def _model_of(body: bytes) -> str | None:
    """The model that a body names; None where it names none or is no JSON: then any backend will do."""
    try:
        model = json.loads(body)["model"] if body else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return model if isinstance(model, str) else None


async def _answer(rooms: Rooms, client: AsgiDownstream, error: GatewayError) -> None:
    match error:
        case InvalidRequest():
            answer = error_answers.answer_to_invalid(error)
        case Rejected():
            answer = error_answers.answer_to_rejected(error, jitter=rooms.jitter)
        case UpstreamFailed():
            answer = error_answers.answer_to_upstream_failure(error)
        case _:
            answer = error_answers.answer_to_bug()
    body = DIALECTS["/v1/chat/completions"].error_body(answer.facts)
    length = (b"content-length", str(len(body)).encode())
    await client.write_head(answer.status, [(b"content-type", b"application/json"), length, *answer.headers])
    await client.write_body(body)
    await client.finish()
