"""Engine profiles: what a step costs on a GPU, and how large the KV pool is. Roofline arithmetic, not measurements.

A step reads all weights once and the cache of every running sequence, computes its new tokens, and pays a fixed price for
launching and scheduling:

    step = fixed + per sequence x n + max(weights / bandwidth, 2 x parameters x tokens / compute)
         + cache read / bandwidth + attention of prompt chunks / compute

Where the numbers come from:
* parameters, layers, heads: the models' public configurations (Llama-3-8B; Qwen2.5-32B as the 32B model).
* H100 SXM 989 TFLOPS bf16, 1,979 fp8 (dense), 3.35 TB/s; A10G 70 TFLOPS (AWS' A10G, not the A10), 600 GB/s: data sheets.
* reachable shares of both: 70 % of compute, 80 % of bandwidth, the same on every GPU. Chosen so that the best that a policy
  can do lies near the capacities against which the loads are scaled (workloads.py); nothing else was fitted.
* pools: 80 (24) GB x 0.9 - weights - some GB of activations, at 128 (256) KiB per token.
* step_tokens and max_running: vLLM's defaults for an API server (8,192 and 1,024 on a GPU of 70 GiB and more, else 2,048
  and 256; `EngineArgs.get_batch_defaults`).
"""

from dataclasses import dataclass

_COMPUTE_SHARE = 0.70
_BANDWIDTH_SHARE = 0.80


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine on one GPU. Times in seconds, the pool in blocks.

    weights_s: reading all weights once. token_s: computing one token. cache_token_s: reading one cached token.
    attention_s: one new token attending to one cached token, as it is computed for prompts. watermark: the share of the
    pool that must stay free when a sequence starts (vLLM's default is none).
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
