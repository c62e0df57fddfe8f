"""`kvgate check`: what `serve` would find, assume, contradict and refuse, said before it matters."""

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.cli.flags import BackendsFlag, exit_with, given_flags, settings_or_exit

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.backends.roster import Roster
    from gateway.backends.trial import TrialResult
    from gateway.backends.view import BackendView
    from gateway.core.names import BackendName
    from gateway.settings import Settings

WRONG_EXIT: Final = 1
# A trial waits for whole answers, and a busy engine takes its time.
_TRIAL_LIMIT_S: Final = 60.0
_LOOK_LIMIT_S: Final = 15.0


def check(
    backends: BackendsFlag = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Send a few tiny requests and compare counts and blocks with the prediction.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask the backends what serve would ask. Exits 1 if something would go wrong in production, 2 for wrong settings."""
    settings = settings_or_exit(given_flags(backends=backends, port=None, admin_port=None))
    if not settings.backends:
        exit_with("no backend is set: name your inference server with --backends or KVGATE_BACKENDS")
    import logging

    watches = logging.getLogger("kvgate")
    level = watches.level
    watches.setLevel(logging.CRITICAL)  # what they would say is printed here, in order
    try:
        findings = asyncio.run(_look(settings, with_trial=probe))
    finally:
        watches.setLevel(level)
    if as_json:
        typer.echo(json.dumps([finding.as_json() for finding in findings], indent=2))
    else:
        typer.echo("\n\n".join(finding.as_text() for finding in findings))
    wrong = [problem for finding in findings for problem in finding.problems]
    if wrong and not as_json:
        typer.echo(f"\n{len(wrong)} problem(s): see above" if len(wrong) > 1 else "\none problem: see above")
    raise SystemExit(WRONG_EXIT if wrong else 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one backend. problems: what would go wrong. tokenizer: what is wrong with the one given for it."""

    view: "BackendView"
    trials: "tuple[TrialResult, ...]"
    conflict: str | None
    tokenizer: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        view = self.view
        found: list[str] = []
        if self.conflict is not None:
            found.append(self.conflict)
        elif not view.healthy or view.capacity is None or view.state_text.startswith(("needs a key", "does not take the key")):
            found.append(view.state_text)
        if view.capacity is not None:
            found += view.capacity.warnings
        if self.tokenizer is not None:
            found.append(f"KVGATE_TOKENIZER: {self.tokenizer}")
        found += [f"probe: {trial}" for trial in self.trials if not trial.agrees]
        return tuple(found)

    @property
    def largest(self) -> int | None:
        """The largest prompt + cap that one request can have; None while no capacity is known."""
        capacity = self.view.capacity
        if capacity is None:
            return None
        return capacity.weighing.tokens_within(capacity.budget.blocks, 1)

    def as_json(self) -> dict[str, Any]:
        view, capacity = self.view, self.view.capacity
        return {
            "name": view.name,
            "url": view.url,
            "engine": view.engine,
            "engine_version": view.engine_version,
            "models": list(view.models),
            "healthy": view.healthy,
            "block_tokens": capacity.weighing.block_tokens if capacity else None,
            "max_context": capacity.weighing.max_context if capacity else None,
            "budget_blocks": capacity.budget.blocks if capacity else None,
            "reserve_blocks": capacity.budget.reserve_blocks if capacity else None,
            "seats": capacity.budget.seats if capacity else None,
            "budget_source": capacity.source if capacity else None,
            "budgets": dict(capacity.budgets) if capacity else {},
            "bytes_per_block": capacity.bytes_per_block if capacity else None,
            "weighing": capacity.weighing.words if capacity else None,
            "largest_prompt_and_cap": self.largest,
            "assumptions": list(capacity.assumptions) if capacity else [],
            "problems": list(self.problems),
            "trials": [
                {"what": trial.what, "predicted": trial.predicted, "seen": trial.seen, "agrees": trial.agrees}
                for trial in self.trials
            ],
        }

    def as_text(self) -> str:
        view, capacity = self.view, self.view.capacity
        version = f" {view.engine_version}" if view.engine_version else ""
        lines = [f"{view.name} at {view.url}: {view.engine}{version}"]
        if view.models:
            lines.append(f"  models     {', '.join(view.models)}")
        if capacity is not None:
            budget, weighing = capacity.budget, capacity.weighing
            budgets = [
                f"{blocks} blocks ({source}{', used' if source == capacity.source else ''})"
                for source, blocks in capacity.budgets.items()
            ]
            size = "" if capacity.bytes_per_block is None else f" and {capacity.bytes_per_block:,} bytes"
            lines += [
                f"  budget     {'; '.join(budgets)}",
                f"  blocks     of {weighing.block_tokens} tokens{size}",
                f"  reserve    {budget.reserve_blocks} blocks; seats {budget.seats or 'not limited'}",
                f"  context    {weighing.max_context or 'not told'}",
                f"  weighing   {weighing.words}",
                f"  refused    {self._refused(weighing.max_context)}",
            ]
            lines += [f"  assumed    {sentence}" for sentence in capacity.assumptions]
        lines += [f"  probe      {trial}" for trial in self.trials]
        lines += [f"  PROBLEM    {problem}" for problem in self.problems]
        return "\n".join(lines)

    def _refused(self, context: int | None) -> str:
        largest = self.largest or 0
        if context is not None and largest >= context:
            return f"nothing that the context of {context} tokens allows"
        if largest == 0:
            return "every request: not even one token fits the budget"
        return f"a request whose prompt + cap is above {largest} tokens"


# Every kind of turn that templates treat in a way of its own.
_TRIAL_CHAT: Final = {
    "messages": b"""[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"},
 {"role": "assistant", "content": "4"}, {"role": "user", "content": "And in Chinese? \\u4e2d\\u6587"}]""",
    "tools": b"""[{"type": "function", "function": {"name": "add", "description": "Adds.",
 "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]""",
}


async def _try_tokenizer(path: "Path | None", roster: "Roster", backend: "BackendName") -> str | None:
    """What is wrong with a local tokenizer: that it cannot be read, or counts otherwise than the engine. None: nothing."""
    from gateway.backends.counting import ExactCounter
    from gateway.core.request import CapState, Countable, InferenceRequest, Prompt
    from gateway.tokens.local import LocalTokenizer

    if path is None:
        return None
    request = InferenceRequest(
        None, (Prompt(0, messages=4),), CapState.ABSENT, None, is_chat=True, to_count=Countable(chat=_TRIAL_CHAT)
    )
    local = LocalTokenizer(path)
    try:
        await local.start()
        counted = await local.count(request)
    except ValueError as error:
        return str(error)
    finally:
        await local.stop()
    by_engine = await ExactCounter(roster).count(backend, request)
    if counted is None or by_engine is None or counted == by_engine:
        return None
    return f"it counts {counted[0]} tokens where the engine counts {by_engine[0]}, and would be turned off"


async def _look(settings: "Settings", *, with_trial: bool) -> list[Finding]:
    """One round of questions to every backend, and the trials after it, one backend at a time."""
    from gateway.backend_specs import backend_keys, backend_spec, given_name
    from gateway.backends.probe import Prober
    from gateway.backends.ranks import with_ranks
    from gateway.backends.roster import Roster
    from gateway.backends.trial import run_trial
    from gateway.clock import MonotonicClock
    from gateway.tls import client_context

    try:
        keys = backend_keys(settings)
        specs = [backend_spec(settings, address, keys)[0] for address in settings.backends]
    except (OSError, ValueError) as error:
        exit_with(str(error))
    prober = Prober(tls=client_context(settings.ca_file), limit_s=_TRIAL_LIMIT_S if with_trial else _LOOK_LIMIT_S)
    specs = await with_ranks(specs, prober)
    given = {spec.name: given_name(spec) for spec in specs}
    roster = Roster(specs, prober=prober, clock=MonotonicClock(), queue_timeout_s=settings.queue_timeout_s)
    try:
        for _ in range(3):  # as often as a backend may fail before it counts as gone
            await roster.look()
            if all(view.capacity is not None for view in roster.views()):
                break
        findings: list[Finding] = []
        for view in roster.views():
            watch = roster.watch(view.name)
            trials = await run_trial(watch) if with_trial and view.capacity is not None else ()
            tokenizer = await _try_tokenizer(settings.tokenizer.of(given[view.name]), roster, view.name)
            findings.append(Finding(view, trials, watch.conflict, tokenizer))
        return findings
    finally:
        await roster.stop()
