"""Choices: what the operator decided that one request meets on its way."""

from dataclasses import dataclass

from gateway.core.decisions import Mode
from gateway.core.engine_rules import EngineRules
from gateway.core.lane_table import STANDARD_ONLY, LaneTable
from gateway.core.offer import DefaultOutput, Overlong
from gateway.relay.watchdog import Clocks


@dataclass(frozen=True, slots=True)
class Choices:
    """The operator's choices. Seconds and bytes; ask_usage None: where the engine is known to take it.

    early_commit_s: how long a stream waits in line before it is answered early, None: it is not.
    """

    mode: Mode
    default_output: DefaultOutput
    overlong: Overlong
    ask_usage: bool | None
    max_body_bytes: int
    upload_timeout_s: float
    queue_timeout_s: float
    clocks: Clocks
    pass_through: frozenset[str]
    ttft_target_s: float | None = None
    queue_requests: int = 1024
    early_commit_s: float | None = None
    lanes: LaneTable = STANDARD_ONLY

    def asks_usage_of(self, rules: EngineRules) -> bool:
        """Whether a stream that did not ask for its usage is sent on asking for it."""
        return rules.takes_include_usage if self.ask_usage is None else self.ask_usage
