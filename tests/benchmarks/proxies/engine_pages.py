"""What the engine of this benchmark says of itself, in the words of those whom proxies and gateways know.

It offers a million blocks, so that a gateway which admits by memory has room for all of the load.
"""

from collections.abc import Mapping
from typing import Final

from benchmarks.proxies.bodies import MODEL

_ABOUT: Final = (
    f'{{"model_path":"{MODEL}","served_model_name":"{MODEL}","tokenizer_path":"","model_type":"llama","is_generation":true,'
    '"architectures":["LlamaForCausalLM"],"preferred_sampling_params":null,"weight_version":"0","version":"0.0.0",'
    '"max_total_num_tokens":131072,"max_running_requests":4096,"dp_size":1,"tp_size":1}'
).encode()
_MODELS: Final = (
    f'{{"object":"list","data":[{{"id":"{MODEL}","object":"model","created":1700000000,"owned_by":"vllm","root":"{MODEL}",'
    '"parent":null,"max_model_len":131072}]}'
).encode()

PAGES: Final[Mapping[bytes, bytes]] = {
    b"/health": b"{}",
    b"/health_generate": b"{}",
    b"/ping": b"{}",
    b"/version": b'{"version":"0.11.0"}',
    b"/v1/models": _MODELS,
    b"/model_info": _ABOUT,
    b"/get_model_info": _ABOUT,
    b"/server_info": _ABOUT,
    b"/get_server_info": _ABOUT,
    b"/get_load": b'[{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}]',
    b"/v1/loads": b'{"loads":[]}',
}
"""JSON, by path."""

_BLOCKS: Final = 1_000_001
# What a stream of this benchmark has written at most: a prompt of 256 tokens, as is reported, and a hundred or so after it.
_STREAM_BLOCKS: Final = 24
_CACHE: Final = (
    f'block_size="16",cache_dtype="auto",enable_prefix_caching="True",gpu_memory_utilization="0.9",num_gpu_blocks="{_BLOCKS}",'
    'num_cpu_blocks="0"'
)


def metrics_page(running: int) -> bytes:
    """Its metrics, by vLLM's names, while so many streams run.

    The gauge of its cache is honest: one that showed more than the streams can have written would make a gateway that
    compares the two weigh every request for more than it is.
    """
    label = f'{{model_name="{MODEL}"}}'
    used = running * _STREAM_BLOCKS / _BLOCKS
    return (
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{label} {running}\n"
        f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{label} 0\n"
        f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{label} {used:.6f}\n"
        f"# TYPE vllm:gpu_cache_usage_perc gauge\nvllm:gpu_cache_usage_perc{label} {used:.6f}\n"
        f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{_CACHE}}} 1.0\n"
        f"# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{label} 1000\n"
        f"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{label} 1000\n"
    ).encode()
