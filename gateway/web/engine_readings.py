"""Engine readings: what the roster hears of an engine every two seconds, told to admission; and one line when that judges."""

import logging

from gateway.admission.controller import Controller
from gateway.backends.view import BackendView, Pool
from gateway.core.commitment import Evidence
from gateway.core.names import BackendName, PoolName
from gateway.core.snapshots import CommitmentSnapshot

log = logging.getLogger("kvgate.commitment")


class EngineReadings:
    """Connects the roster to the judge of each backend, and an engine's own histogram of answers to the evidence."""

    def __init__(self, controller: Controller, evidence: Evidence) -> None:
        self._controller = controller
        self._evidence = evidence
        self._said: dict[BackendName, tuple[bool, float]] = {}
        self._seen_families: set[str] = set()

    def read(self, view: BackendView) -> None:
        """One round of questions was answered."""
        self._seed(view)
        if view.capacity is None:
            return
        # Slots that share one cache: an overrun there fails every request that runs.
        overrun_fails_all = view.rules.fair_share_tokens is not None
        self._controller.read_engine(view.name, view.preemptions, overrun_fails_all=overrun_fails_all)
        self._tell(view, self._controller.snapshot().backends[view.name].commitment)

    def _tell(self, view: BackendView, commitment: CommitmentSnapshot) -> None:
        """One line whenever the freedom or the headroom changed, with the reason."""
        now = (commitment.is_forecast, commitment.headroom)
        before = self._said.get(view.name)
        if before == now:
            return
        self._said[view.name] = now
        is_less_free = before is not None and (now[0], -now[1]) < (before[0], -before[1])
        log.log(
            logging.WARNING if is_less_free else logging.INFO,
            "%s: %s: %s",
            view.name,
            f"forecast, {commitment.headroom:.0%} headroom" if commitment.is_forecast else "strict",
            commitment.why,
            extra={"fields": {"backend": view.name, "preemptions": view.preemptions}},
        )

    def _seed(self, view: BackendView) -> None:
        pool = Pool(PoolName(view.name), (view,))
        for model in view.models:
            family = pool.family(model)
            if family in self._seen_families:
                continue
            self._seen_families.add(family)
            if self._evidence.seed(family, view.answer_lengths.get(model, ())):
                log.info("%s: begins with the engine's own histogram of answers of %s", view.name, model)
            elif self._evidence.families() and not self._evidence.has_family(family):
                log.info("%s: what is known is of other models or versions, nothing of %s", view.name, family)
