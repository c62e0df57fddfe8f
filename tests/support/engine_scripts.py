"""What real engines answer to a gateway's questions, in their shapes, with the figures that a test wants."""

from support.scripted_engine import ScriptedEngine

GPU_MAPPED_BYTES = 21e9
CPU_MAPPED_BYTES = 1.8e9


def script_vllm(
    engine: ScriptedEngine,
    *,
    blocks: int = 65,
    block_tokens: int = 32,
    context: int = 1024,
    cache_tokens: int | None = 2080,
    version: str = "0.32.0+cpu",
    models: tuple[str, ...] = ("tiny",),
    engines: int = 1,
    usage: float = 0.0,
    running: int = 0,
    waiting: int = 0,
    preemptions: int = 0,
    kv_dtype: str = "auto",
    state_mode: str | None = None,
    started: float = 1.79603167318e9,
    mapped_bytes: float | None = GPU_MAPPED_BYTES,
    usage_name: str = "vllm:kv_cache_usage_perc",
    more: str = "",
) -> None:
    """vLLM, as 0.32 answers. blocks: num_gpu_blocks, the null block among them. engines: data-parallel ones."""
    entry = {"object": "model", "owned_by": "vllm", "parent": None, "max_model_len": context}
    engine.json("/v1/models", {"object": "list", "data": [{"id": name, **entry} for name in models]})
    engine.json("/version", {"version": version})
    lines = [f"process_start_time_seconds {started!r}"]
    if mapped_bytes is not None:
        lines.append(f"process_virtual_memory_bytes {mapped_bytes!r}")
    for number in range(engines):
        labels = f'engine="{number}",model_name="{models[0]}"'
        info = f'block_size="{block_tokens}",cache_dtype="{kv_dtype}",engine="{number}",kv_cache_dtype_skip_layers="[]"'
        info += "" if state_mode is None else f',mamba_cache_mode="{state_mode}"'
        lines += [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{labels}}} {running}.0",
            f"vllm:num_requests_waiting{{{labels}}} {waiting}.0",
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {waiting}.0',
            f"{usage_name}{{{labels}}} {usage!r}",
            f"vllm:num_preemptions_total{{{labels}}} {preemptions}.0",
            f"vllm:num_preemptions_created{{{labels}}} 1.7960317269205554e+09",
            f'vllm:cache_config_info{{{info},kv_cache_size_tokens="{cache_tokens}",num_gpu_blocks="{blocks}"}} 1.0',
        ]
    engine.text("/metrics", "\n".join(lines) + "\n" + more)
    engine.json("/tokenize", {"count": 14, "max_model_len": context, "tokens": [1] * 14, "token_strs": None})


def script_dynamo(
    engine: ScriptedEngine, *, blocks: int = 64, block_tokens: int = 32, context: int = 1024, seats: int = 64
) -> None:
    """Dynamo's frontend, as 1.6.1 answers."""
    entry = {"id": "tiny", "object": "model", "owned_by": "nvidia", "context_window": context}
    engine.json("/v1/models", {"object": "list", "data": [entry]})
    engine.json("/openapi.json", {"info": {"title": "NVIDIA Dynamo OpenAI Frontend", "version": "1.6.1"}, "paths": {}})
    engine.text(
        "/metrics",
        f"""# TYPE dynamo_frontend_model_total_kv_blocks gauge
dynamo_frontend_model_total_kv_blocks{{model="tiny"}} {blocks}
dynamo_frontend_model_kv_cache_block_size{{model="tiny"}} {block_tokens}
dynamo_frontend_model_context_length{{model="tiny"}} {context}
dynamo_frontend_model_max_num_seqs{{model="tiny"}} {seats}
dynamo_frontend_inflight_requests{{model="tiny"}} 2
dynamo_frontend_queued_requests{{model="tiny"}} 1
""",
    )


def script_llama_cpp(engine: ScriptedEngine, *, slots: int = 4, slot_tokens: int = 1024, metrics: bool = True) -> None:
    """llama.cpp's server, as b11549 answers. slot_tokens: what each slot says that it may use."""
    meta = {"n_ctx": slot_tokens, "n_ctx_train": 8192}
    engine.json("/v1/models", {"object": "list", "data": [{"id": "smollm2", "owned_by": "llamacpp", "meta": meta}]})
    settings = {"default_generation_settings": {"n_ctx": slot_tokens, "params": {"max_tokens": -1}}}
    engine.json("/props", {**settings, "total_slots": slots, "build_info": "b11549-abc"})
    engine.json("/health", {"status": "ok"})
    page = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 3\n"
    if metrics:
        engine.text("/metrics", page)
    else:
        engine.json("/metrics", {"error": {"code": 501, "message": "not supported", "type": "not_supported_error"}}, status=501)
    engine.json("/v1/chat/completions/input_tokens", {"input_tokens": 32, "object": "response.input_tokens"})
    engine.json("/tokenize", {"tokens": [28120, 665]})


def script_transformers(engine: ScriptedEngine) -> None:
    """`transformers serve`, as 5.19 answers."""
    engine.json("/v1/models", {"object": "list", "data": []})
    engine.json("/health", {"status": "ok"})
    engine.json("/openapi.json", {"info": {"title": "FastAPI"}, "paths": {"/load_model": {"post": {}}, "/reset": {}}})


def script_plain_server(engine: ScriptedEngine) -> None:
    """Some OpenAI-compatible server that no engine's file knows."""
    engine.json("/v1/models", {"object": "list", "data": [{"id": "any", "context_length": 4096}]})


def script_sglang(
    engine: ScriptedEngine,
    *,
    tokens: int = 65536,
    page: int = 1,
    context: int = 32768,
    used: int = 0,
    retracted: int = 0,
    seats: int | None = 48,
    dp_size: int = 1,
    started: float = 1.79603167318e9,
    old_route: bool = False,
    metrics: bool = True,
    more: str = "",
) -> None:
    """SGLang, as 0.5 answers."""
    entry = {"id": "tiny", "object": "model", "owned_by": "sglang", "root": "tiny", "max_model_len": context}
    engine.json("/v1/models", {"object": "list", "data": [entry]})
    state = {"effective_max_running_requests_per_dp": seats, "memory_usage": {"kvcache": 7.5, "token_capacity": tokens}}
    info = {"version": "0.5.23", "page_size": page, "max_total_num_tokens": tokens, "context_length": None, "dp_size": dp_size}
    content = {**info, "max_running_requests": None, "kv_cache_dtype": "auto", "internal_states": [state] * dp_size}
    engine.json("/get_server_info" if old_route else "/server_info", content)
    engine.json("/health", {})
    engine.json("/tokenize", {"tokens": [1, 2, 3], "count": 3, "max_model_len": context})
    labels = 'model_name="tiny",tp_rank="0"'
    if metrics:
        engine.text(
            "/metrics",
            f"""process_start_time_seconds {started!r}
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{{{labels}}} {float(tokens)}
sglang:kv_used_tokens{{{labels}}} {float(used)}
sglang:num_running_reqs{{{labels}}} 2.0
sglang:num_queue_reqs{{{labels}}} 1.0
sglang:num_retracted_reqs{{{labels}}} 9.0
sglang:num_retracted_requests_total{{{labels}}} {float(retracted)}
{more}""",
        )


def script_tgi(engine: ScriptedEngine, *, tokens: int | None = 16000, context: int = 4096) -> None:
    """text-generation-inference, as 2 and 3 answer; the newer one does not tell its tokens."""
    told = {} if tokens is None else {"max_batch_total_tokens": tokens}
    limits = {"max_concurrent_requests": 128, "max_best_of": 2, "max_input_tokens": context - 1, "max_total_tokens": context}
    names = {"model_id": "tiny", "router": "text-generation-router", "version": "3.3.6"}
    engine.json("/info", {**names, **limits, **told})
    engine.json("/v1/models", {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "tiny"}]})
    engine.text("/metrics", "tgi_queue_size 3\ntgi_batch_current_size 2\n")
    engine.json("/tokenize", [{"id": 1, "text": "a", "start": 0, "stop": 1}, {"id": 2, "text": "b", "start": 1, "stop": 2}])
    engine.json("/chat_tokenize", {"tokenize_response": [{"id": 1}] * 7, "templated_text": "..."})
