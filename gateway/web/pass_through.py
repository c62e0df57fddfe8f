"""Paths that go on without a hold: they take no KV, or the operator opened them knowing that they may.

Counting and version routes cost the engine no KV cache, so they pass as they are, for callers with a key where keys are
needed. Nothing here is a request in the sense
of the tally; bodies, clocks and departures are bounded all the same.
"""

import asyncio
from typing import Any, Final

import msgspec

from gateway.core.errors import GatewayError, Rejected, UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.core.outcomes import RejectReason
from gateway.relay.downstream import AsgiDownstream, Receive, Send
from gateway.relay.headers import answer_headers
from gateway.web.plain_errors import write_error
from gateway.web.rooms import Rooms
from gateway.web.running import shutting_down
from gateway.web.upload import BodySpace, read_upload
from gateway.web.upstream import Upstream

OPEN_PATHS: Final = frozenset(
    {
        "/tokenize",
        "/detokenize",
        "/v1/chat/completions/input_tokens",
        "/v1/messages/count_tokens",
        "/v1/responses/input_tokens",
        "/version",
    }
)


async def pass_through(rooms: Rooms, scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Relay one uncounted call to the first healthy backend that serves its model.

    Its path is one of those that are open, once decoded; it goes on as it was written, for another spelling is still that path.
    """
    client = AsgiDownstream(receive, send)
    task = asyncio.current_task()
    assert task is not None, "an ASGI server calls its application in a task"
    call = _Call(client, task)
    client.on_gone(call.end)
    space = rooms.body_room.open()
    rooms.running.add(call)
    try:
        await _relay(rooms, scope, call, space)
    except GatewayError as error:
        client.on_gone(None)
        await write_error(client, error, rooms.jitter, path=scope["path"])
    except asyncio.CancelledError:
        if not client.gone and not call.is_cut:
            raise
        task.uncancel()
        if call.head_sent:
            client.abort()
        elif not client.gone:
            client.on_gone(None)
            await write_error(client, shutting_down(), rooms.jitter, path=scope["path"])
    finally:
        rooms.running.discard(call)
        client.unwatch()
        space.close()


class _Call:
    """One uncounted call. It ends when its client leaves, or is cut at the end of a drain."""

    def __init__(self, client: AsgiDownstream, task: asyncio.Task[Any]) -> None:
        self.client = client
        self.head_sent = False
        self.is_cut = False
        self._task = task

    def end(self) -> None:
        self._task.cancel()

    def cut(self, stage: UpstreamStage) -> None:
        if not self.client.gone:
            self.is_cut = True
            self._task.cancel()


async def _relay(rooms: Rooms, scope: dict[str, Any], call: _Call, space: BodySpace) -> None:
    choices, client = rooms.choices, call.client
    rooms.callers.identify(scope["headers"])
    body = await read_upload(
        client, scope["headers"], space.take, limit_bytes=choices.max_body_bytes, timeout_s=choices.upload_timeout_s
    )
    client.watch()
    name, upstream = _choose(rooms, await rooms.big_bodies.read(_model_of, body))
    exchange = await upstream.send(
        scope["method"].encode(),
        scope["raw_path"],
        scope.get("query_string", b""),
        scope["headers"],
        body,
        key_was_ours=rooms.callers.are_known,
    )
    reader = _Reader(client, choices.clocks.send_s)
    rooms.watchdog.watch(reader)
    try:
        async with asyncio.timeout(choices.clocks.total_s):
            head = await exchange.head()
            headers = answer_headers(head.headers, is_event_stream=head.is_event_stream, length_changes=False)
            call.head_sent = True
            await client.write_head(head.status, headers)
            while data := await exchange.read():
                await client.write_body(data)
            await client.finish()
    except TimeoutError:
        if not call.head_sent:
            raise UpstreamFailed(name, UpstreamStage.TOTAL, "an uncounted call took too long") from None
        client.abort()
    except UpstreamFailed:
        if not call.head_sent:
            raise
        client.abort()
    finally:
        rooms.watchdog.unwatch(reader)
        exchange.abort(None)


class _Reader:
    """Watched: a client that takes no byte for so long is gone here as well."""

    def __init__(self, client: AsgiDownstream, send_s: float) -> None:
        self._client = client
        self._send_s = send_s

    def check(self, now: float) -> None:
        blocked_since = self._client.blocked_since
        if blocked_since is not None and now - blocked_since > self._send_s:
            self._client.give_up()


def _choose(rooms: Rooms, model: str | None) -> tuple[BackendName, Upstream]:
    pool = rooms.roster.pool_for(model)
    views = pool.backends if pool is not None else rooms.roster.views()
    view = next((view for view in views if view.healthy), None)
    if view is None:
        message = f"none of the {len(views)} backends for this call answers at the moment"
        raise Rejected(message, reason=RejectReason.NO_BACKEND, retry_after_s=None)
    return view.name, rooms.upstreams[view.name]


class _Named(msgspec.Struct):
    model: Any = None


_NAMED: Final = msgspec.json.Decoder(_Named)


def _model_of(body: bytes) -> str | None:
    """The model that a body names; None where it names none or is no JSON: then any backend will do."""
    try:
        model = _NAMED.decode(body).model if body else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return model if isinstance(model, str) else None
