"""The replay of a trace before the engine that it was played against, and of the log that it left, with fitted speeds."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.replay_run.figures import Seen, seen_in_replay
from benchmarks.replay_run.scenes import Scene
from gateway.core.reserve import Reserve
from gateway.replay.engine_choice import EngineWish, choose_engine
from gateway.replay.fit import Fit
from gateway.replay.reader import read_trace
from gateway.replay.replay import Fate, replay
from gateway.replay.setting import Caps, Setting, Site
from gateway.simulator.engine import EngineShape


@dataclass(frozen=True, slots=True)
class Gate:
    """How the gateway is set; everything else has its default."""

    reserve: str = "5%"
    policy: str = "fifo"
    commitment: str = "auto"

    @property
    def environment(self) -> dict[str, str]:
        return {"KVGATE_RESERVE": self.reserve, "KVGATE_POLICY": self.policy, "KVGATE_COMMITMENT": self.commitment}

    @property
    def flags(self) -> str:
        """Of `kvgate replay`."""
        return f"--reserve {self.reserve} --policy {self.policy} --commitment {self.commitment}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """name: for people. command: that gives the same. fit: of the engine's speeds, where they come from a log."""

    name: str
    command: str
    seen: list[Seen]
    span_s: float
    fit: Fit | None


def predict_by_trace(path: Path, scene: Scene, gate: Gate) -> Prediction:
    """Nothing of the real run is known to it."""
    return _predict(path, f"simulator:{scene.speed:g}", scene, gate)


def predict_by_log(path: Path, scene: Scene, gate: Gate) -> Prediction:
    """From the log of a real run: arrivals as they were, speeds as they are fitted."""
    return _predict(path, "fit", scene, gate)


def nearly_as_fast(log: Path, scene: Scene, gate: Gate) -> dict[str, Prediction]:
    """The log before the engine as it is set, and before one that is a hundredth slower or faster: how much a small error in
    its speed is worth."""
    speeds = {"1 % slower": 0.99, "as it is set": 1.0, "1 % faster": 1.01}
    return {name: _predict(log, f"simulator:{scene.speed * factor:g}", scene, gate) for name, factor in speeds.items()}


def _predict(path: Path, engine: str, scene: Scene, gate: Gate) -> Prediction:
    shape = EngineShape()
    wish = EngineWish(
        name=engine,
        step_tokens=shape.step_tokens,
        kv_blocks=scene.blocks,
        block_tokens=shape.block_tokens,
        max_context=scene.context_tokens,
        seats=shape.max_running,
    )
    trace = read_trace([path])
    choice = choose_engine(trace, wish)
    site = Site(choice.profile, choice.max_context, sessions=scene.sessions, has_prefix_cache=False)
    setting = Setting(Reserve.parse(gate.reserve), 1, gate.policy, gate.commitment, Caps.parse("as-sent"))
    fates: list[Fate] = []
    result = replay(trace, site, setting, on_fate=fates.append)
    sessions = f" --sessions {scene.sessions}" if trace.has_sessions and scene.sessions is not None else ""
    command = (
        f"kvgate replay {path} --engine {engine} --kv-blocks {scene.blocks} --max-context {scene.context_tokens}"
        f" --seats {wish.seats} --step-tokens {wish.step_tokens} --no-prefix-cache{sessions} {gate.flags}"
    )
    return Prediction(
        "log, fitted" if choice.fit else f"trace, {engine}", command, seen_in_replay(fates), result.span_s, choice.fit
    )
