"""`kvgate plan`: from a model's config to bytes, blocks and sessions, without an engine at hand."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.flags import exit_with

if TYPE_CHECKING:
    from gateway.cli.plan_report import Memory
    from gateway.core.geometry.groups import Model
    from gateway.core.geometry.plan import Plan

Size = Annotated[str | None, typer.Option(show_default=False)]


def plan(
    config: Annotated[Path | None, typer.Option(help="A model's config.json, or its folder.", show_default=False)] = None,
    layers: Annotated[int | None, typer.Option(help="Without a config: attention layers.", show_default=False)] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Without a config: KV heads of a layer.", show_default=False)] = None,
    head_dim: Annotated[int | None, typer.Option(help="Without a config: width of a head.", show_default=False)] = None,
    kv_dtype: Annotated[str, typer.Option(help="auto, bf16, fp8, fp8_per_token_head, nvfp4, q8_0, ...")] = "auto",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    pp: Annotated[str, typer.Option(help="Pipeline stages, or the layers of each: 16+32.")] = "1",
    engine: Annotated[str, typer.Option(help="vllm, sglang, tgi, llama_cpp or tensorrt_llm.")] = "vllm",
    block_tokens: Annotated[int | None, typer.Option(help="Tokens in a block [the engine's own].", show_default=False)] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of one card: 80GiB.", show_default=False)] = None,
    weights: Annotated[str | None, typer.Option(help="Weights on one card [from the index].", show_default=False)] = None,
    runtime: Annotated[str | None, typer.Option(help="Activations, graphs, libraries on one card.", show_default=False)] = None,
    reserve: Annotated[str, typer.Option(help="Never granted: blocks, percent or GiB.")] = "0",
    max_context: Annotated[int | None, typer.Option(help="Longest sequence that the engine takes.", show_default=False)] = None,
    tokens: Annotated[str, typer.Option(help="Lengths to plan, comma-separated.")] = "4096,32768,131072",
    draft_layers: Annotated[int, typer.Option(help="Layers of a draft model in the same pool.")] = 0,
    speculative_tokens: Annotated[int, typer.Option(help="Tokens drafted at once.")] = 0,
    max_batched_tokens: Annotated[int, typer.Option(help="Tokens in flight, which windows keep.")] = 8192,
    state_mode: Annotated[str, typer.Option(help="Blocks of a recurrent state: align, none or all.")] = "align",
    swap_space: Annotated[str | None, typer.Option(help="Not counted; says why.", show_default=False)] = None,
    cpu_offload: Annotated[str | None, typer.Option(help="Not counted; says why.", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture: out.svg (extra: plot).", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a model's KV cache takes: groups of layers, bytes, blocks, sessions, and what the naive formula would have said."""
    from gateway.cli.plan_report import NOT_COUNTED, Report, report_json, report_text
    from gateway.core.geometry.engine_pools import ENGINE_NAMES
    from gateway.core.geometry.plan import PlanSettings, choose_dtype, make_plan, naive_rate, parse_stages
    from gateway.core.geometry.vllm_pages import StateMode

    try:
        name = ENGINE_NAMES.get(engine.strip().lower())
        if name is None:
            raise ValueError(f"--engine {engine!r} is not one of {', '.join(ENGINE_NAMES)}")
        if state_mode not in tuple(StateMode):
            raise ValueError(f"--state-mode {state_mode!r} is not one of {', '.join(StateMode)}")
        for flag, number in (("--tp", tp), ("--block-tokens", block_tokens), ("--max-context", max_context)):
            if number is not None and number < 1:
                raise ValueError(f"{flag} must be at least 1, not {number}")
        for flag, number in (("--draft-layers", draft_layers), ("--speculative-tokens", speculative_tokens)):
            if number < 0:
                raise ValueError(f"{flag} must be at least 0, not {number}")
        model, raw, weights_bytes = _model(config, layers, kv_heads, head_dim)
        bare = model
        if draft_layers:
            model = model.with_drafts(draft_layers)
        dtype, said = choose_dtype(model, kv_dtype)
        settings = PlanSettings(
            engine=name,
            dtype=dtype,
            tp=tp,
            partition=parse_stages(pp, len(model.layers)),
            block_tokens=block_tokens,
            max_context=max_context,
            in_flight_tokens=max_batched_tokens,
            state_mode=StateMode(state_mode),
            speculated=speculative_tokens,
        )
        made = make_plan(model, settings)
        lengths = _lengths(tokens, max_context)
        ranks = tp * max(len(settings.partition), 1)
        told = _memory(memory, weights, runtime, reserve, weights_bytes, ranks, made, lengths)
    except ValueError as error:
        exit_with(str(error))
    for flag, value in (("--swap-space", swap_space), ("--cpu-offload", cpu_offload)):
        if value is not None:
            said = (*said, f"{flag} {value} is not counted: {NOT_COUNTED}")
    report = Report(made, lengths, told, naive_rate(raw, dtype, layers=len(bare.layers)), said)
    if plot is not None:
        _draw(plot, report)
    typer.echo(json.dumps(report_json(report), indent=2) if as_json else report_text(report))


def _model(
    config: Path | None, layers: int | None, kv_heads: int | None, head_dim: int | None
) -> "tuple[Model, dict[str, object], int | None]":
    """The model, the raw text config behind it, and the bytes of its weights where files say so."""
    from gateway.core.geometry.model_config import plain_model, read_model, text_config
    from gateway.model_files import read_model_files

    bare = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim}
    if config is not None:
        if any(value is not None for value in bare.values()):
            raise ValueError("give --config or the bare dimensions (--layers, --kv-heads, --head-dim), not both")
        files = read_model_files(config)
        model = read_model(files.config, quant_config=files.quant_config)
        return model, dict(text_config(files.config)), files.weights_bytes
    missing = [flag for flag, value in bare.items() if value is None]
    if layers is None or kv_heads is None or head_dim is None:
        raise ValueError(f"give --config, or the bare dimensions: {', '.join(missing)} is missing")
    sizes = {"num_hidden_layers": layers, "num_attention_heads": kv_heads, "head_dim": head_dim}
    return plain_model(layers=layers, kv_heads=kv_heads, head_dim=head_dim), dict(sizes), None


def _lengths(text: str, max_context: int | None) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and 0 < int(part) <= 2**40 for part in parts):
        raise ValueError(f"--tokens {text!r} is no list of lengths, like 4096,32768")
    lengths = sorted({int(part) for part in parts})
    if max_context is None:
        return tuple(lengths)
    return tuple(sorted({min(length, max_context) for length in lengths}))


def _memory(
    memory: str | None,
    weights: str | None,
    runtime: str | None,
    reserve: str,
    weights_bytes: int | None,
    ranks: int,
    made: "Plan",
    lengths: tuple[int, ...],
) -> "Memory | None":
    from gateway.cli.plan_report import Memory, plan_memory
    from gateway.units import parse_bytes

    def size(flag: str, text: str) -> int:
        try:
            found = parse_bytes(text)
        except ValueError as error:
            raise ValueError(f"{flag}: {error}") from None
        if 0 < found < 2**20:
            raise ValueError(f"{flag} {text!r} is {found} bytes: write its unit, like 24GiB")
        return found

    if memory is None:
        if weights is not None or runtime is not None:
            raise ValueError("--weights and --runtime need --memory: the memory of one card")
        return None
    estimate = None if weights_bytes is None else -(-weights_bytes // ranks)
    given = size("--weights", weights) if weights is not None else estimate
    if given is None:
        raise ValueError("--weights is missing, and no index of weights lies beside the config: give the bytes on one card")
    found: Memory = plan_memory(
        made,
        total_bytes=size("--memory", memory),
        weights_bytes=given,
        is_estimate=weights is None,
        runtime_bytes=size("--runtime", runtime) if runtime is not None else 0,
        reserve=reserve,
        lengths=lengths,
    )
    return found


def _draw(path: Path, report: "object") -> None:
    try:
        from gateway.cli.plan_picture import draw
    except ImportError:
        exit_with("a picture needs the extra `plot`: pip install 'kvgate[plot]'")
    draw(path, report)  # type: ignore[arg-type]
