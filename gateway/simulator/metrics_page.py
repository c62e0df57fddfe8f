"""The engine's /metrics, in vLLM's names and Prometheus' text format, as far as a gateway or an operator reads it."""

from collections.abc import Mapping

from gateway.simulator.engine import Engine
from gateway.simulator.openai_requests import Served

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def render_metrics(engine: Engine, served: Served, *, started_s: float) -> bytes:
    """The page as it stands now. started_s: when the server began, UNIX time."""
    labels = {"engine": "0", "model_name": served.name}
    shape, gauges = engine.shape, engine.gauges
    config = {
        "block_size": str(shape.block_tokens),
        "cache_dtype": "auto",
        "enable_prefix_caching": "False",
        "engine": "0",
        "kv_cache_size_tokens": str(shape.cache_tokens),
        "num_gpu_blocks": str(shape.num_blocks),
        "sliding_window": "None",
    }
    lines: list[str] = []
    _add(lines, "cache_config_info", "gauge", "Information of the cache", config, 1.0)
    _add(lines, "num_requests_running", "gauge", "Sequences in the running batch", labels, gauges.running)
    _add(lines, "num_requests_waiting", "gauge", "Sequences waiting to be scheduled", labels, gauges.waiting)
    _add(lines, "kv_cache_usage_perc", "gauge", "Used part of the KV cache, 1 is all", labels, gauges.used_fraction)
    _add(lines, "num_preemptions", "counter", "Preemptions so far", labels, engine.scheduler.preemptions)
    _add(lines, "prompt_tokens", "counter", "Prompt tokens processed", labels, engine.prompt_tokens)
    _add(lines, "generation_tokens", "counter", "Tokens generated", labels, engine.generation_tokens)
    for reason in ("stop", "length", "abort"):
        finished = {**labels, "finished_reason": reason}
        _add(
            lines,
            "request_success",
            "counter",
            "Sequences that ended",
            finished,
            engine.finished[reason],
            repeated=reason != "stop",
        )
    # What a gateway tells a restarted engine by. It has no prefix in vLLM either: it is the process' own.
    started = "process_start_time_seconds"
    lines += [f"# HELP {started} Start of the process, UNIX time.", f"# TYPE {started} gauge", f"{started} {started_s:.2f}"]
    return ("\n".join(lines) + "\n").encode()


def _add(
    lines: list[str], name: str, kind: str, text: str, labels: Mapping[str, str], value: float, *, repeated: bool = False
) -> None:
    """One sample; `repeated`: of a family that has been introduced already."""
    full = f"vllm:{name}_total" if kind == "counter" else f"vllm:{name}"
    if not repeated:
        lines += [f"# HELP {full} {text}.", f"# TYPE {full} {kind}"]
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in sorted(labels.items()))
    lines.append(f"{full}{{{inner}}} {float(value)}")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
