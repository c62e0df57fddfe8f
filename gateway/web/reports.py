"""What an engine's report of its prompt tokens teaches: how many bytes a token has, whether the count was right, and whether
something behind the gate has cut the prompt.

Only a whole answer is believed: some engines guess a number at the beginning of a stream and correct it at the end.
"""

from typing import Final

from gateway.core.offer import CountKind, PromptCount
from gateway.core.request import InferenceRequest
from gateway.tokens.least import LEAST_BYTES, may_be_truncated
from gateway.web.journal import Journal
from gateway.web.rooms import Rooms

# An exact count may differ by what a server adds by itself; a cut prompt misses more.
_CLEARLY_FEWER: Final = 0.9
_A_FEW_TOKENS: Final = 16

_EXACT: Final = CountKind.EXACT


def reported_tokens(journal: Journal) -> int | None:
    """Prompt tokens that the engine reported of a request that it answered whole; None where it did not."""
    watcher, status = journal.watcher, journal.status
    if watcher is None or status is None or not 200 <= status < 300 or watcher.has_error or not watcher.is_complete:
        return None
    usage = watcher.usage
    return usage.prompt_tokens if usage is not None and usage.prompt_tokens > 0 else None


def is_truncated(journal: Journal, reported: int) -> bool:
    """Whether `reported` tokens are clearly fewer than the prompt has: something behind the gate has cut it."""
    request = journal.request
    return request is not None and _is_cut(journal, request, _count_of(journal), reported)


def _is_cut(journal: Journal, request: InferenceRequest, count: PromptCount | None, reported: int) -> bool:
    if len(request.prompts) != 1 or request.prompts[0].may_be_cut:
        # Of several prompts engines report now all, now one.
        return False
    if count is not None and count.kind is _EXACT:
        return reported < _CLEARLY_FEWER * count.total - _A_FEW_TOKENS
    if request.prompts[0].text_bytes < LEAST_BYTES:
        return False
    if journal.seems_cut is None:
        journal.seems_cut = may_be_truncated(request, reported)
    return journal.seems_cut


def _count_of(journal: Journal) -> PromptCount | None:
    """The best count that the request came to have."""
    return journal.recount or (journal.weighed.count if journal.weighed is not None else None)


def can_be_told(request: InferenceRequest) -> bool:
    """Whether a plain answer is worth reading to its end first, since its prompt is long enough to have been cut."""
    if request.stream:
        return False
    size = 0
    for prompt in request.prompts:
        size += prompt.text_bytes or prompt.token_ids or 0
    return size >= LEAST_BYTES


def learn_from(rooms: Rooms, journal: Journal) -> None:
    """The request has ended, and its journal has not."""
    request, grant, count = journal.request, journal.grant, _count_of(journal)
    if request is None or grant is None or count is None:
        return
    reported = reported_tokens(journal)
    if reported is None:
        return
    truncated = _is_cut(journal, request, count, reported)
    by = count.counted_by
    if (
        by is not None
        and len(request.prompts) == 1
        and not rooms.counter.compare(by, count.total, reported, truncated=truncated)
    ):
        return
    if truncated:
        journal.truncated = True
    else:
        rooms.ratios.learn(grant.granted.ticket.family, request, reported)
