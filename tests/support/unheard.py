"""A running answer whose reports nobody hears, for tests of relaying that ask nothing of admission."""

from gateway.admission.running_answer import Reports, RunningAnswer
from gateway.core.names import BackendName
from gateway.core.pace import Pace
from gateway.core.ticket import Ticket


def unheard(ticket: Ticket, backend: BackendName, *, is_stream: bool = True, now: float = 0.0) -> RunningAnswer:
    reports = Reports(
        progress=lambda ticket, tokens: None,
        first_token=lambda ticket, was_seen: None,
        gaps=lambda backend, seconds, tokens: None,
        learn=lambda ticket, tokens, ending: None,
    )
    return RunningAnswer(ticket, backend, is_stream=is_stream, patience_s=60.0, pace=Pace(), reports=reports, now=now)
