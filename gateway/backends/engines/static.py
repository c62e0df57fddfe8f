"""Any server at all: nothing is known of it but what its list of models says; every figure comes from the operator."""

from gateway.backends.engines.answers import contexts, listed_models
from gateway.backends.engines.engine import CountCall, EngineReport, LiveUse
from gateway.backends.probe import Probe
from gateway.core.request import InferenceRequest


class Static:
    name = "static"

    async def probe(self, probe: Probe) -> EngineReport | None:
        listed = listed_models(
            (await probe.get("/v1/models")).json(),
            ("max_model_len",),
            ("context_window",),
            ("context_length",),
            ("meta", "n_ctx"),
        )
        return EngineReport(engine=self.name, models=contexts(listed))

    async def read_live(self, probe: Probe, report: EngineReport) -> LiveUse:
        # Whatever it answers, 404 as well: a server that answers is alive.
        await probe.get("/health")
        return LiveUse()

    def count_calls(self, request: InferenceRequest) -> tuple[CountCall, ...] | None:
        return None
