"""What goes wrong on the routes that FastAPI serves, in the one shape of all our errors.

FastAPI's own answers repeat what was sent, and fail themselves where that is half an emoji or not a number; ours never do.
"""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from gateway.dialects.dialect import ErrorFacts
from gateway.web.plain_errors import dress


def error_response(status: int, code: str, message: str, headers: dict[str, str] | None = None, *, path: str = "") -> Response:
    """An error of ours as FastAPI's routes return it. path: what was asked for, where that decides about its shape."""
    return Response(dress(path, ErrorFacts(status, code, message)), status, headers, media_type="application/json")


def add_errors(app: FastAPI, *, not_found: str) -> None:
    """Answer errors of routing and validation. not_found: a sentence with `{path}` in it."""

    @app.exception_handler(404)
    async def closed(request: Request, _: Exception) -> Response:
        path = str(request.scope["path"])
        message = not_found.format(path=path if path.isprintable() else ascii(path))
        return error_response(404, "not_found", message, path=path)

    @app.exception_handler(405)
    async def other_method(request: Request, error: Any) -> Response:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"this path takes {allowed or 'another method'}"
        headers = {"allow": allowed} if allowed else None
        return error_response(405, "method_not_allowed", message, headers, path=str(request.scope["path"]))

    @app.exception_handler(400)
    async def unreadable(request: Request, _: Exception) -> Response:
        return error_response(400, "invalid_request", "the body cannot be read")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        found = [f"{'.'.join(ascii(part).strip(chr(39)) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
        return error_response(400, "invalid_request", "; ".join(found[:5]))
