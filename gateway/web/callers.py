"""Callers: who a request is from, by the credential that it brings, and what it may ask for by that.

It promises: without a keys file everybody is `anonymous`; with one, a key that is not in it is answered 401 before
anything of the body is read. The file is read again as a whole or not at all: requests that are on their way keep what they
came with, and a file that cannot be used leaves everything as it was, with one line in the log.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from gateway.core.errors import InvalidRequest
from gateway.core.outcomes import RejectReason
from gateway.core.tenant import TenantTerms
from gateway.keys_file import MOST_PRIORITY, Keys, read_keys_file
from gateway.relay.headers import CREDENTIALS, Header
from gateway.web.asked import PRIORITY, Asked

log = logging.getLogger("kvgate.callers")


class Callers:
    """The callers of one gateway. path None: there are no keys."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises OSError or ValueError for a file that cannot be used."""
        self._path = path
        self._reading = threading.Lock()
        self._keys = Keys() if path is None else read_keys_file(path)

    @property
    def are_known(self) -> bool:
        """Whether keys are ours to check. If not, a credential is the engine's affair and goes on unchanged."""
        return self._path is not None

    def reread(self) -> None:
        """Read the file again. Says in one line what came of it; never raises. May be called in a thread, since a file of
        many keys takes its time; of several calls the last to begin reads last."""
        if self._path is None:
            log.info("there is no keys file to read again")
            return
        with self._reading:
            try:
                keys = read_keys_file(self._path)
            except (OSError, ValueError) as error:
                log.error("the keys stay as they were: %s", error)
                return
            self._keys = keys
        log.info("keys read again: %d of %d tenants", len(keys.by_digest), keys.tenants)

    def identify(self, headers: Sequence[Header]) -> TenantTerms:
        """The terms of the tenant whose request it is.

        Raises InvalidRequest (unauthorized) for a key that is not known, or for none where one is needed.
        """
        keys = self._keys
        if self._path is None and keys.anonymous is not None:
            return keys.anonymous  # whatever it brings: that is the engine's affair
        found = [_key_in(name, value) for name, value in headers]
        brought = [key for key in found if key is not None]
        for key in brought:
            terms = keys.find(key)
            if terms is not None:
                return terms
        if not brought and keys.anonymous is not None:
            return keys.anonymous
        raise InvalidRequest(
            "this gateway knows no such key" if brought else "this gateway needs a key: Authorization: Bearer, or x-api-key",
            reason=RejectReason.UNAUTHORIZED,
        )


def _key_in(name: bytes, value: bytes) -> bytes | None:
    """The key in a header, None if it is not one that brings one."""
    name = name.lower()
    if name not in CREDENTIALS:
        return None
    if name == b"authorization":
        scheme, _, value = value.strip().partition(b" ")
        if scheme.lower() != b"bearer":
            return b""  # a credential all the same, which is nobody's key here
    return value.strip()


def asked_priority(asked: Asked, body_priority: int | None) -> int | None:
    """The priority that a client asks for, in its header or else in its body; None if it asks for none.

    On both the lower number goes first. What is no whole number asks for nothing.
    """
    said = asked.get(PRIORITY)
    if said is not None:
        try:
            return max(min(int(said), MOST_PRIORITY), -MOST_PRIORITY) if len(said) <= 16 else None
        except ValueError:
            return None
    return body_priority
