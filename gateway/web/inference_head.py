"""The head of a call of an inference route, and what follows from it alone, worked out once.

A client that keeps its connection sends the same head again and again (web/known_head.py); all those requests share one of
these, so it never changes, and keeps nothing that may change under it: whose key it brings is asked for every request.
"""

from gateway.dialects.dialect import Dialect
from gateway.relay.headers import CREDENTIALS, kept_headers
from gateway.relay.upstream_request import checked_lines
from gateway.web.asked import asked_of
from gateway.web.error_answers import Headers
from gateway.web.patience import usable_patience
from gateway.web.trace_context import trace_context


class InferenceHead:
    """headers: names in lower case; `content-length` among them is that of the first request with this head, and says nothing
    of another whose body is whole. query: as it came, without the question mark. credentials: the headers that bring a key.
    """

    __slots__ = (
        "_dropped",
        "_onward_lines",
        "asked",
        "credentials",
        "dialect",
        "headers",
        "patience_s",
        "query",
        "target",
        "trace",
    )

    def __init__(self, dialect: Dialect, query: bytes, headers: Headers) -> None:
        self.dialect = dialect
        self.headers = headers
        self.query = query
        path = dialect.path.encode()
        self.target = path + b"?" + query if query else path
        self.asked = asked = asked_of(headers)
        self.trace = trace_context(asked) if asked else None
        self.patience_s = usable_patience(asked) if asked else None
        self.credentials = [header for header in headers if header[0] in CREDENTIALS]
        self._onward_lines = b""
        self._dropped: frozenset[bytes] | None = None  # when those lines were made

    def onward_lines(self, dropped: frozenset[bytes]) -> bytes:
        """What of the headers goes on to an engine, whichever it is, as it stands in a head. dropped: names that do not.

        Raises InvalidRequest for a header that could break out of its line.
        """
        if self._dropped != dropped:
            self._onward_lines, self._dropped = checked_lines(kept_headers(self.headers, dropped)), dropped
        return self._onward_lines
