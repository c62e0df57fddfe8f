"""The data plane's application: inference routes by one raw ASGI endpoint, everything else by FastAPI.

Ordinary requests to inference routes do not come here at all: web/http_protocol.py hands them to the same `Inference`.

FastAPI owns the application and declares every route, so that `/docs` lists them; requests to the inference routes are
taken ahead of its middleware stack, which would cost more than the rest of the way together.
"""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import Response

from gateway import __version__
from gateway.core.errors import InvalidRequest
from gateway.dialects import DIALECTS
from gateway.dialects.dialect import Dialect
from gateway.relay.downstream import AsgiDownstream, Receive, Send
from gateway.web.control_errors import add_errors
from gateway.web.inference import Inference
from gateway.web.inference_head import InferenceHead
from gateway.web.lifecycle import Lifecycle
from gateway.web.operations import add_health
from gateway.web.pass_through import OPEN_PATHS, pass_through
from gateway.web.plain_errors import write_error
from gateway.web.rooms import Rooms
from gateway.web.serve_request import serve_request
from gateway.web.small_bodies import SmallBodies

Scope = dict[str, Any]

_READ: Final = b"GET, HEAD, OPTIONS"
_ASK: Final = b"POST, OPTIONS"


class Front:
    """The ASGI application that the data port serves."""

    def __init__(self, rooms: Rooms, lifecycle: Lifecycle, inference: Inference) -> None:
        self._rooms = rooms
        self._inference = inference
        self._app = SmallBodies(
            data_app(rooms, lifecycle),
            room=rooms.body_room,
            timeout_s=rooms.choices.upload_timeout_s,
            jitter=rooms.jitter,
        )
        self._open_paths = OPEN_PATHS | rooms.choices.pass_through

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, method = scope["path"], scope["method"]
            if method == "OPTIONS" and (methods := self._methods(path)) is not None:
                await _say_methods(methods, send)
                return
            dialect = DIALECTS.get(path) if method == "POST" else None
            if dialect is not None:
                client = AsgiDownstream(receive, send)
                await self._inference.serve(InferenceHead(dialect, scope["query_string"], scope["headers"]), client)
                return
            if path == _MODELS and not await self._lets_in(scope, receive, send):
                return
            if path in self._open_paths:
                await pass_through(self._rooms, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _lets_in(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Whether who asks for the models may call; if not, it has been answered."""
        try:
            self._rooms.callers.identify(scope["headers"])
        except InvalidRequest as error:
            await write_error(AsgiDownstream(receive, send), error, self._rooms.jitter, path=scope["path"])
            return False
        return True

    def _methods(self, path: str) -> bytes | None:
        """What may be asked of a path; None for one that is not served."""
        if path in DIALECTS:
            return _ASK
        if path in self._open_paths or path == "*":
            return b"GET, HEAD, POST, OPTIONS"
        return _READ if path in _READ_PATHS else None


_MODELS: Final = "/v1/models"
_READ_PATHS: Final = frozenset({"/health", "/ready", _MODELS})


async def _say_methods(methods: bytes, send: Send) -> None:
    """The answer to a browser's preflight, which comes without a key: neither refused nor queued nor sent on.

    It allows no other origin: whoever serves a page puts kvgate under the page's own origin.
    """
    await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", methods)]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class _RawAnswer(Response):
    """Hands a request that came by way of FastAPI to the raw endpoint, as if it had been taken ahead of it."""

    def __init__(self, rooms: Rooms, dialect: Dialect) -> None:
        super().__init__()
        self._rooms, self._dialect = rooms, dialect

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await serve_request(self._rooms, self._dialect, scope, receive, send)


def data_app(rooms: Rooms, lifecycle: Lifecycle) -> FastAPI:
    """What FastAPI serves on the data port."""
    app = FastAPI(title="kvgate", version=__version__, redirect_slashes=False)
    add_health(app, rooms, lifecycle)

    @app.api_route(_MODELS, methods=["GET", "HEAD"], tags=["inference"], summary="The models that are served")
    async def models() -> dict[str, Any]:
        return models_of(rooms)

    for path, dialect in DIALECTS.items():
        _declare(app, rooms, path, dialect)

    add_errors(
        app,
        not_found="{path} is not served here. What kvgate cannot count it does not pass on: to open this path without"
        " counting it, list it in KVGATE_PASS_THROUGH",
    )
    return app


def _declare(app: FastAPI, rooms: Rooms, path: str, dialect: Dialect) -> None:
    body = {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}

    @app.post(path, tags=["inference"], summary=f"{dialect.name}, counted and held", openapi_extra={"requestBody": body})
    async def inference() -> Response:
        return _RawAnswer(rooms, dialect)


def models_of(rooms: Rooms) -> dict[str, Any]:
    """`GET /v1/models`: what the backends list, each name once, with the largest context."""
    contexts: dict[str, int | None] = {}
    for view in rooms.roster.views():
        context = view.capacity.weighing.max_context if view.capacity is not None else None
        for model in view.models:
            known = contexts.get(model)
            contexts[model] = context if known is None else max(known, context or 0)
    return {
        "object": "list",
        "data": [
            {"id": model, "object": "model", "created": 0, "owned_by": "kvgate", "max_model_len": context}
            for model, context in contexts.items()
        ],
    }
