"""Workloads: a trace, an engine, and what its users expect. Capacity is the load that counts as 1.0."""

from dataclasses import dataclass

from gateway.replay.profiles import LLAMA_8B_A10G, LLAMA_8B_H100, QWEN_32B_H100, EngineProfile


@dataclass(frozen=True, slots=True)
class Workload:
    """capacity: requests per second. context: max_model_len. fixed_cap: what a client of that kind sends as its fixed cap.

    ttft_s, itl_s: the objectives: time to the first token, and mean time between tokens, of one request. A client's patience
    is its ttft_s: who has not been admitted by then is refused. warm_share: of the requests, those at the start that are not
    counted: until as many run as will, and answers of every length have been seen (the longest of reason-8b take minutes).
    """

    name: str
    trace: str
    engine: EngineProfile
    capacity: float
    context: int
    fixed_cap: int
    ttft_s: float
    itl_s: float
    requests: int = 2000
    warm_share: float = 0.15


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("chat-8b", "azure_conv", LLAMA_8B_H100, 20.3, 32_768, 4096, 2.0, 0.050),
        Workload("chat-32b", "azure_conv", QWEN_32B_H100, 6.5, 32_768, 4096, 2.0, 0.100),
        Workload("code-8b", "azure_code", LLAMA_8B_H100, 19.9, 32_768, 4096, 2.0, 0.100),
        Workload("long-8b", "mooncake_conversation", LLAMA_8B_H100, 0.99, 131_072, 4096, 10.0, 0.100, requests=1300),
        Workload("reason-8b", "servegen_r1", LLAMA_8B_H100, 1.20, 49_152, 32_768, 5.0, 0.050, 3000, 1 / 3),
        Workload("mix-a10g", "servegen_mlarge", LLAMA_8B_A10G, 2.35, 8192, 2048, 5.0, 0.100),
    )
}
