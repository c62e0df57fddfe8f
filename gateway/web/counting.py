"""Counting: the exact count of a request's prompts, by whoever can give it, and not twice for the same body.

The local tokenizer is asked first, where the operator gave one: it costs the engine nothing. Then the engine itself. A
local tokenizer is believed only until an engine contradicts it, by its own count (asked for as well until `_PROVEN` agreed)
or by the usage of an answer: another tokenizer or template than the engine's would count wrongly for ever, and refuse what
fits; so one contradiction turns it off for that backend, and says so.

Counts are kept by the hash of everything that the engine counts, for one backend and one start of its engine; so they are
exactly right. Memory is bounded, and very large bodies are not hashed.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from gateway.backends.counting import ExactCounter
from gateway.backends.roster import Roster
from gateway.core.names import BackendName
from gateway.core.offer import CountKind, PromptCount
from gateway.core.request import InferenceRequest
from gateway.tokens.local import LocalTokenizer

MOST_KEPT: Final = 8192
# Hashing takes about 1 ms per MiB, on the event loop.
_HASHED_BYTES: Final = 1 << 20
# After so many counts that the engine bore out, a report of far fewer tokens is not the tokenizer's error.
_PROVEN: Final = 8

log = logging.getLogger("kvgate.tokens")

_Key = tuple[BackendName, int, bytes]


class Counting:
    def __init__(
        self, roster: Roster, engines: ExactCounter, local: Mapping[BackendName, LocalTokenizer] | None = None
    ) -> None:
        """local: the tokenizer of each backend for which one was given; several may share one."""
        self._roster = roster
        self._engines = engines
        self._local = dict(local or {})
        self._kept: OrderedDict[_Key, PromptCount] = OrderedDict()
        self._agreed: dict[BackendName, int] = {}

    async def start(self) -> None:
        """Read the local tokenizers. Raises ValueError, one sentence, for one that cannot be used."""
        for tokenizer in dict.fromkeys(self._local.values()):
            await tokenizer.start()

    async def stop(self) -> None:
        for tokenizer in dict.fromkeys(self._local.values()):
            await tokenizer.stop()
        self._local.clear()

    async def count(self, backend: BackendName, request: InferenceRequest) -> PromptCount | None:
        """The exact count; None if it cannot be had. Raises KeyError for an unknown backend."""
        if any(prompt.may_be_cut for prompt in request.prompts):
            # What the engine leaves of it is its own affair.
            return None
        key = self._key(backend, request)
        kept = self._kept.get(key) if key is not None else None
        if kept is not None and key is not None:
            self._kept.move_to_end(key)
            return kept
        counted = await self._ask(backend, request)
        if counted is not None and key is not None:
            self._kept[key] = counted
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return counted

    def compare(self, backend: BackendName, counted_tokens: int, reported_tokens: int, *, truncated: bool) -> bool:
        """The engine's report on a prompt that the local tokenizer of that backend had counted. Returns whether it agrees.

        truncated: the report is of clearly fewer tokens; from a tokenizer that has agreed before, that is the engine's doing.
        One that disagrees is not asked any more.
        """
        agreed = self._agreed.get(backend, 0)
        if counted_tokens == reported_tokens:
            self._agreed[backend] = agreed + 1
            return True
        if truncated and agreed >= _PROVEN:
            return True
        self._contradicted(backend, counted_tokens, reported_tokens)
        return False

    def _contradicted(self, backend: BackendName, counted_tokens: int, reported_tokens: int) -> None:
        if self._local.pop(backend, None) is None:
            return
        self._kept = OrderedDict((key, kept) for key, kept in self._kept.items() if kept.counted_by != backend)
        log.warning(
            "%s: the tokenizer given for it counted %d prompt tokens where the engine counted %d, so it is not used any"
            " more: KVGATE_TOKENIZER must name the engine's own tokenizer and chat template",
            backend,
            counted_tokens,
            reported_tokens,
        )

    async def _ask(self, backend: BackendName, request: InferenceRequest) -> PromptCount | None:
        local = self._local.get(backend)
        tokens = await local.count(request) if local is not None else None
        if tokens is not None and self._agreed.get(backend, 0) < _PROVEN and _is_counted_alike(request):
            by_engine = await self._engines.count(backend, request)
            if by_engine is not None:
                self.compare(backend, sum(tokens), sum(by_engine), truncated=False)
        # Who was contradicted, now or in the meantime, has no say.
        if tokens is not None and backend in self._local:
            return PromptCount(tokens, CountKind.EXACT, counted_by=backend)
        tokens = await self._engines.count(backend, request)
        return None if tokens is None else PromptCount(tokens, CountKind.EXACT)

    def _key(self, backend: BackendName, request: InferenceRequest) -> _Key | None:
        countable = request.countable
        parts = list(countable.texts)
        if countable.chat is not None:
            parts += [part for name, raw in sorted(countable.chat.items()) for part in (name.encode(), raw)]
        if not parts or sum(map(len, parts)) > _HASHED_BYTES:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for prompt in request.prompts:
            digest.update(b"%d," % (-1 if prompt.token_ids is None else prompt.token_ids))
        for part in parts:
            digest.update(b"%d:" % len(part) + part)
        return (backend, self._roster.watch(backend).generation, digest.digest())


def _is_counted_alike(request: InferenceRequest) -> bool:
    """Whether an engine's counting route reads all that its template does; vLLM's leaves out two members of a chat."""
    return request.countable.chat is None or not {"reasoning_effort", "documents"} & set(request.countable.chat)
