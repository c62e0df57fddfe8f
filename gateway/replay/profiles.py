"""Engine profiles: what a step costs, and how large the KV pool is.

Those of GPUs are roofline arithmetic, not measurements. A step reads all weights once and the cache of every running
sequence, computes its new tokens, and pays a fixed price for launching and scheduling:

    step = fixed + per sequence x n + max(weights / bandwidth, 2 x parameters x tokens / compute)
         + cache read / bandwidth + attention of prompt chunks / compute

Simpler ones, such as the simulator's and what is fitted from a log, have three figures: step = fixed + per sequence x n +
per prompt token x tokens of prompts.

Where the numbers come from:
* parameters, layers, heads: the models' public configurations (Llama-3-8B; Qwen2.5-32B as the 32B model).
* H100 SXM 989 TFLOPS bf16, 1,979 fp8 (dense), 3.35 TB/s; A10G 70 TFLOPS (AWS' A10G, not the A10), 600 GB/s: data sheets.
* reachable shares of both: 70 % of compute, 80 % of bandwidth, the same on every GPU. Chosen so that the best that a policy
  can do lies near the capacities against which the loads are scaled (workloads.py); nothing else was fitted.
* pools: 80 (24) GB x 0.9 - weights - some GB of activations, at 128 (256) KiB per token.
* step_tokens and max_running: vLLM's defaults for an API server (8,192 and 1,024 on a GPU of 70 GiB and more, else 2,048
  and 256; `EngineArgs.get_batch_defaults`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gateway.simulator.engine import EngineShape
from gateway.units import parse_duration

_COMPUTE_SHARE: Final = 0.70
_BANDWIDTH_SHARE: Final = 0.80


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine on one GPU. Times in seconds, the pool in blocks.

    weights_s: reading all weights once. token_s: computing one token. cache_token_s: reading one cached token.
    attention_s: one new token attending to one cached token, as it is computed for prompts. prompt_token_s: what a token of
    a prompt costs beside token_s. watermark: the share of the pool that must stay free when a sequence starts (vLLM's
    default is none). spare_blocks: what kvgate holds for a sequence beside the formula, see EngineRules.
    """

    name: str
    blocks: int
    fixed_s: float
    sequence_s: float
    weights_s: float
    token_s: float
    cache_token_s: float
    attention_s: float
    step_tokens: int
    max_running: int
    block_tokens: int = 16
    watermark: float = 0.0
    prompt_token_s: float = 0.0
    spare_blocks: int = 1

    @property
    def words(self) -> str:
        """What it is, for operators."""
        one = self.fixed_s + self.sequence_s + max(self.weights_s, self.token_s)
        prompt_s = self.prompt_token_s + self.token_s
        prefill = f"{1 / prompt_s:,.0f} prompt tokens/s" if prompt_s else "prompts at no cost"
        return f"{self.name}: {1000 * one:.3g} ms for a step of one sequence, {prefill}, {self.step_tokens} tokens a step"


def _roofline(
    name: str,
    *,
    tflops: float,
    gb_per_s: float,
    parameters: float,
    weight_bytes: float,
    layers: int,
    attention_width: int,
    cache_bytes: int,
    pool_tokens: int,
    step_tokens: int,
    max_running: int,
) -> EngineProfile:
    compute = tflops * 1e12 * _COMPUTE_SHARE
    bandwidth = gb_per_s * 1e9 * _BANDWIDTH_SHARE
    return EngineProfile(
        name=name,
        blocks=pool_tokens // 16,
        fixed_s=0.002,
        sequence_s=5e-6,
        weights_s=weight_bytes / bandwidth,
        token_s=2 * parameters / compute,
        cache_token_s=cache_bytes / bandwidth,
        attention_s=4 * layers * attention_width / compute,
        step_tokens=step_tokens,
        max_running=max_running,
    )


LLAMA_8B_H100 = _roofline(
    "Llama-3-8B bf16 on H100",
    tflops=989,
    gb_per_s=3350,
    parameters=8.0e9,
    weight_bytes=16.0e9,
    layers=32,
    attention_width=4096,
    cache_bytes=128 * 1024,
    pool_tokens=406_000,
    step_tokens=8192,
    max_running=1024,
)
QWEN_32B_H100 = _roofline(
    "32B fp8 on H100",
    tflops=1979,
    gb_per_s=3350,
    parameters=32.5e9,
    weight_bytes=32.5e9,
    layers=64,
    attention_width=5120,
    cache_bytes=256 * 1024,
    pool_tokens=137_000,
    step_tokens=8192,
    max_running=1024,
)
LLAMA_8B_A10G = _roofline(
    "Llama-3-8B bf16 on A10G",
    tflops=70,
    gb_per_s=600,
    parameters=8.0e9,
    weight_bytes=16.0e9,
    layers=32,
    attention_width=4096,
    cache_bytes=128 * 1024,
    pool_tokens=30_000,
    step_tokens=2048,
    max_running=256,
)


# Names that an operator can give. (The simulator's is `simulator` or `simulator:SPEED`.)
ENGINES: Final[Mapping[str, EngineProfile]] = {
    "h100-8b": LLAMA_8B_H100,
    "h100-32b": QWEN_32B_H100,
    "a10g-8b": LLAMA_8B_A10G,
}
_SIMULATOR: Final = "simulator"


def simulator(speed: float = 1.0) -> EngineProfile:
    """The pretend engine of gateway/simulator with its defaults: its own three figures, so that its steps take as long."""
    shape = EngineShape()
    pace = shape.pace
    return EngineProfile(
        name=f"{_SIMULATOR} x {speed:g}",
        blocks=shape.num_blocks - 1,  # one holds no tokens
        fixed_s=pace.step_s / speed,
        sequence_s=pace.sequence_s / speed,
        weights_s=0.0,
        token_s=0.0,
        cache_token_s=0.0,
        attention_s=0.0,
        step_tokens=shape.step_tokens,
        max_running=shape.max_running,
        block_tokens=shape.block_tokens,
        prompt_token_s=pace.prefill_token_s / speed,
        spare_blocks=0,  # its version says that it is no build for GPUs
    )


def find_engine(text: str) -> EngineProfile:
    """The profile that an operator names. Raises ValueError with a sentence."""
    name, colon, rest = text.strip().lower().partition(":")
    if name in ENGINES and not colon:
        return ENGINES[name]
    if name == _SIMULATOR:
        speed = _number(rest) if colon else 1.0
        if speed is not None:
            return simulator(speed)
    raise ValueError(f"{text!r} is no engine: there are {', '.join(ENGINES)} and {_SIMULATOR}[:SPEED]")


def with_speed(profile: EngineProfile, text: str) -> EngineProfile:
    """The profile with speeds of one's own: `prefill=8000,step=20ms,sequence=0.1ms`, all of them or some.

    prefill: prompt tokens per second. step: a decode step without its sequences. sequence: what each of them adds.
    Raises ValueError with a sentence.
    """
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            match name.strip().lower():
                case "prefill":
                    rate = _number(value)
                    if rate is None:
                        raise ValueError
                    profile = replace(profile, prompt_token_s=1 / rate, token_s=0.0, attention_s=0.0)
                case "step":
                    profile = replace(profile, fixed_s=parse_duration(value), weights_s=0.0)
                case "sequence":
                    profile = replace(profile, sequence_s=parse_duration(value), cache_token_s=0.0)
                case _:
                    raise ValueError
        except ValueError:
            raise ValueError(f"{part!r} is no speed: write prefill=8000,step=20ms,sequence=0.1ms, or some of them") from None
    return replace(profile, name=f"{profile.name}, {text.strip()}")


def _number(text: str) -> float | None:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < 1e12 else None
