"""A client on the other side of ASGI: says its request, keeps what it is told, and can leave at any instant.

caller = Caller(body=b"{}")
await serve_request(rooms, dialect, caller.scope, caller.receive, caller.send)
... caller.status, caller.headers, caller.body ...
"""

import asyncio
import json
from collections.abc import MutableMapping, Sequence
from typing import Any


class Caller:
    def __init__(
        self,
        path: str = "/v1/chat/completions",
        *,
        method: str = "POST",
        body: bytes = b"",
        headers: Sequence[tuple[bytes, bytes]] = (),
        sends_whole_body: bool = True,
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"gateway"), *headers],
        }
        self.messages: list[MutableMapping[str, Any]] = []
        self._unsent = [{"type": "http.request", "body": body, "more_body": not sends_whole_body}]
        self._left = asyncio.Event()

    def leave(self) -> None:
        """The client closes its connection."""
        self._left.set()

    async def receive(self) -> MutableMapping[str, Any]:
        if self._unsent:
            return self._unsent.pop(0)
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int | None:
        """None: no head came."""
        return next((message["status"] for message in self.messages if message["type"] == "http.response.start"), None)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [
            header for message in self.messages if message["type"] == "http.response.start" for header in message["headers"]
        ]

    def header(self, name: bytes) -> bytes | None:
        """The only header of that name, None if there is none."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, f"{name!r} came {len(values)} times"
        return values[0] if values else None

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages if message["type"] == "http.response.body")

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the answer."""
        error = json.loads(self.body)["error"]
        assert isinstance(error, dict)
        return error

    @property
    def is_finished(self) -> bool:
        """The answer had its tidy end."""
        return bool(self.messages) and self.messages[-1].get("more_body") is False
