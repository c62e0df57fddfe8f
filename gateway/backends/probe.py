"""Probe: our own questions to a backend, for discovery, health and exact counts. The only file that imports httpx.

It promises: an answer within its time limit or UpstreamFailed; never more of a body than was asked for; no proxy, no
credentials and no certificate store from the environment; our key is sent to the backend that it is for, and neither it
nor user info in a URL is ever shown.
"""

import asyncio
import json
import logging
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx

from gateway.core.errors import UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName

PROBE_LIMIT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 4 * 2**20

# Not 501: a page that this server has not, or that was not turned on, says nothing about its health.
_CANNOT_SERVE: Final = frozenset((500, 502, 503, 504))


class NeedsKey(Exception):
    """The backend answered 401 or 403: it is there, and wants a key that we have not, or another one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer. Header names are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status == 200

    def json(self) -> object:
        """The body as strict JSON (no NaN, no Infinity), None if it is not."""
        try:
            return json.loads(self.body, parse_constant=_refuse_constant, parse_float=_finite)
        except (ValueError, RecursionError):
            return None

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Probe(Protocol):
    """Questions to one backend. rank: of several engines behind the address, the one that is meant.

    has_metrics_beside: the engine's page of metrics is at another address than the backend's.
    """

    @property
    def name(self) -> BackendName: ...

    @property
    def rank(self) -> int | None: ...

    @property
    def has_metrics_beside(self) -> bool: ...

    async def get_metrics_beside(self) -> Answer:
        """The page of metrics at the other address. Raises as `get` does; our key is not sent there."""
        ...

    async def get(self, path: str, *, max_bytes: int = MAX_ANSWER_BYTES) -> Answer:
        """The answer to GET `path`; 404 and 501 are answers as well.

        Raises UpstreamFailed (stage CONNECT, CONNECT_TIMEOUT, HEAD, BODY or TOTAL), also where the server says that it
        cannot serve (500, 502, 503, 504), and NeedsKey.
        """
        ...

    async def post(self, path: str, body: bytes, *, max_bytes: int = MAX_ANSWER_BYTES) -> Answer:
        """The answer to a JSON body posted to `path`, whatever its status. Raises as `get` does otherwise."""
        ...


class HttpProbe:
    """Questions over HTTP. `url` is the backend's base, without user info and without a trailing /v1."""

    def __init__(
        self,
        name: BackendName,
        url: str,
        *,
        client: httpx.AsyncClient,
        key: str | None,
        rank: int | None,
        metrics_url: str | None,
        limit_s: float,
    ) -> None:
        self.name = name
        self.rank = rank
        self._url = url
        self._metrics_url = metrics_url
        self._client = client
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._limit_s = limit_s

    def __repr__(self) -> str:
        return f"probe of {self.name} at {self._url}"

    @property
    def has_metrics_beside(self) -> bool:
        return self._metrics_url is not None

    async def get_metrics_beside(self) -> Answer:
        assert self._metrics_url is not None, "ask has_metrics_beside first"
        return self._able(await self._ask("GET", self._metrics_url, {}, None, MAX_ANSWER_BYTES), self._metrics_url)

    async def get(self, path: str, *, max_bytes: int = MAX_ANSWER_BYTES) -> Answer:
        return self._able(await self._ask("GET", self._url + path, self._headers, None, max_bytes), path)

    async def post(self, path: str, body: bytes, *, max_bytes: int = MAX_ANSWER_BYTES) -> Answer:
        headers = {**self._headers, "content-type": "application/json"}
        return await self._ask("POST", self._url + path, headers, body, max_bytes)

    def _able(self, answer: Answer, path: str) -> Answer:
        if answer.status in _CANNOT_SERVE:
            raise self._failed(UpstreamStage.HEAD, f"it answers {answer.status} to {path}")
        return answer

    async def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, max_bytes: int) -> Answer:
        path = url.removeprefix(self._url)
        stage = UpstreamStage.HEAD
        try:
            async with (
                asyncio.timeout(self._limit_s),
                self._client.stream(method, url, headers=headers, content=body) as response,
            ):
                stage = UpstreamStage.BODY
                content = await self._read(response, max_bytes)
        except httpx.ConnectTimeout as error:
            raise self._failed(UpstreamStage.CONNECT_TIMEOUT, "no connection within the time limit") from error
        except httpx.ConnectError as error:
            raise self._failed(UpstreamStage.CONNECT, _reason(error)) from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise self._failed(UpstreamStage.TOTAL, f"no answer to {path} within {self._limit_s:g} s") from error
        except UpstreamFailed:
            raise
        except Exception as error:
            # Not only what httpx documents: of a connection that is reset as soon as it is open, under uvloop, it asks for
            # the address of a socket that is gone (AttributeError). Whatever it is, it is about that connection.
            raise self._failed(stage, f"no usable answer to {path}: {_reason(error)}") from error
        if response.status_code in (401, 403):
            raise NeedsKey
        return Answer(response.status_code, content, {name.lower(): value for name, value in response.headers.items()})

    async def _read(self, response: httpx.Response, max_bytes: int) -> bytes:
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > max_bytes:
                raise self._failed(UpstreamStage.BODY, f"the answer is larger than {max_bytes} bytes")
        return bytes(content)

    def _failed(self, stage: UpstreamStage, detail: str) -> UpstreamFailed:
        return UpstreamFailed(self.name, stage, detail)


class RememberingProbe:
    """The same backend for one round of discovery: each GET is asked once, however many engines' files want to see it."""

    def __init__(self, probe: Probe) -> None:
        self.name = probe.name
        self.rank = probe.rank
        self.has_metrics_beside = probe.has_metrics_beside
        self._probe = probe
        self._answers: dict[str, Answer] = {}

    async def get_metrics_beside(self) -> Answer:
        return await self._probe.get_metrics_beside()

    async def get(self, path: str, *, max_bytes: int = MAX_ANSWER_BYTES) -> Answer:
        if path not in self._answers:
            self._answers[path] = await self._probe.get(path, max_bytes=max_bytes)
        return self._answers[path]

    async def post(self, path: str, body: bytes, *, max_bytes: int = MAX_ANSWER_BYTES) -> Answer:
        return await self._probe.post(path, body, max_bytes=max_bytes)


class Prober:
    """Owns the one HTTP client of our own questions; gives a Probe for each backend. Closed once, at the end."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, limit_s: float = PROBE_LIMIT_S) -> None:
        """tls: the certificates to trust for https, None: those that httpx brings along."""
        self._limit_s = limit_s
        # Idle connections are not kept: the next question is seconds away, a server may drop them meanwhile, and a
        # refused connect is what tells us soonest that a server has gone.
        self._client = httpx.AsyncClient(
            trust_env=False,
            verify=tls if tls is not None else True,
            timeout=httpx.Timeout(limit_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            follow_redirects=False,
            headers={"accept-encoding": "identity", "user-agent": "kvgate"},
        )
        # httpx tells each request at info level: one line every two seconds for each backend.
        logging.getLogger("httpx").setLevel(logging.WARNING)

    def probe(
        self, name: BackendName, url: str, *, key: str | None = None, rank: int | None = None, metrics_url: str | None = None
    ) -> Probe:
        """Questions to one backend. key: sent as a bearer token. metrics_url: of the engine's own page, at another address."""
        return HttpProbe(name, url, client=self._client, key=key, rank=rank, metrics_url=metrics_url, limit_s=self._limit_s)

    async def close(self) -> None:
        await self._client.aclose()


def _reason(error: BaseException) -> str:
    """Why, in few words. The URL is not in it: httpx does not repeat it, and ours has no user info left."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ConnectionRefusedError):
            return "connection refused"
        inner = inner.__cause__ or inner.__context__
    if str(error) == "All connection attempts failed":
        return "connection refused or no route to it"
    return (str(error) or type(error).__name__)[:200]


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number that fits")
    return number
