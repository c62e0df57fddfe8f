"""`transformers serve`, as version 5.19 answers: it tells nothing of its cache, and its list of models may be empty.

A request larger than its cache ends its batching worker for good, so it needs a gate more than any other; the figures
have to come from the operator.
"""

from gateway.backends.engines.answers import contexts, listed_models, member
from gateway.backends.engines.engine import CountCall, EngineReport, LiveUse
from gateway.backends.probe import Probe
from gateway.core.engine_rules import EngineRules
from gateway.core.request import InferenceRequest


class Transformers:
    name = "transformers"

    async def probe(self, probe: Probe) -> EngineReport | None:
        # A route of its own that no other server has tells it: its answers carry no name and no version.
        if not isinstance(member((await probe.get("/openapi.json")).json(), "paths", "/load_model"), dict):
            return None
        listed = listed_models((await probe.get("/v1/models")).json(), ("max_model_len",))
        return EngineReport(engine=self.name, models=contexts(listed), rules=EngineRules(has_best_of=False))

    async def read_live(self, probe: Probe, report: EngineReport) -> LiveUse:
        await probe.get("/health")
        return LiveUse()

    def count_calls(self, request: InferenceRequest) -> tuple[CountCall, ...] | None:
        return None
