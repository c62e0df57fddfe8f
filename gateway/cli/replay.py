"""`kvgate replay`: what other settings would have made of a log, or of a trace, before anything is changed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from gateway.cli.flags import exit_with, settings_or_exit

if TYPE_CHECKING:
    from gateway.cli.replay_report import Report
    from gateway.replay.engine_choice import EngineChoice
    from gateway.replay.setting import Setting, Site
    from gateway.settings import Settings

T = TypeVar("T")

_TENANTS: Final = 10


def replay(
    files: Annotated[list[Path], typer.Argument(help="An access log (JSON) or a CSV, also gzipped; or several of a kind.")],
    reserve: Annotated[str | None, typer.Option(help="One or more: 2%,5%,10% [KVGATE_RESERVE]", show_default=False)] = None,
    backends: Annotated[
        str | None, typer.Option(help="How many engines, one or more numbers: 1,2 (as in the log, else 1)", show_default=False)
    ] = None,
    policy: Annotated[str | None, typer.Option(help="One or more: fifo,size [KVGATE_POLICY]", show_default=False)] = None,
    commitment: Annotated[
        str | None, typer.Option(help="One or more: strict,auto [KVGATE_COMMITMENT]", show_default=False)
    ] = None,
    caps: Annotated[str, typer.Option(help="Caps that clients send: as-sent, absent, N or 1.5x (of the truth).")] = "as-sent",
    engine: Annotated[
        str | None,
        typer.Option(help="h100-8b, h100-32b, a10g-8b, simulator[:SPEED], or fit (to a log).", show_default=False),
    ] = None,
    speed: Annotated[
        str | None, typer.Option(help="Its speeds: prefill=8000,step=20ms,sequence=0.1ms", show_default=False)
    ] = None,
    step_tokens: Annotated[int | None, typer.Option(help="Tokens that it computes in a step.", show_default=False)] = None,
    kv_blocks: Annotated[
        str | None,
        typer.Option(help="Usable KV blocks of an engine [KVGATE_KV_BLOCKS, else its profile's]", show_default=False),
    ] = None,
    block_tokens: Annotated[
        str | None, typer.Option(help="Tokens in a block [KVGATE_BLOCK_TOKENS, else 16]", show_default=False)
    ] = None,
    max_context: Annotated[
        str | None, typer.Option(help="Longest sequence [KVGATE_MAX_CONTEXT, else what the trace needs]", show_default=False)
    ] = None,
    seats: Annotated[
        str | None, typer.Option(help="Sequences at once [KVGATE_SEATS, else its profile's]", show_default=False)
    ] = None,
    patience: Annotated[str | None, typer.Option(help="Longest wait [KVGATE_QUEUE_TIMEOUT]", show_default=False)] = None,
    load: Annotated[float, typer.Option(help="Requests come so many times as fast.")] = 1.0,
    sessions: Annotated[int | None, typer.Option(help="Sessions of a trace at work at once.", show_default=False)] = None,
    pool: Annotated[str | None, typer.Option(help="Of a log, the requests of this pool only.", show_default=False)] = None,
    prefix_cache: Annotated[bool, typer.Option(help="The engine keeps what turns of a session share.")] = True,
    tenants: Annotated[int, typer.Option(help="Tenants that are shown by name.")] = _TENANTS,
    plot: Annotated[Path | None, typer.Option(help="Write a picture: out.png (extra: plot).", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Feed a log or a trace through the gateway's own book on a simulated clock, once for each setting, and compare them."""
    flags = {
        "KVGATE_KV_BLOCKS": kv_blocks,
        "KVGATE_BLOCK_TOKENS": block_tokens,
        "KVGATE_MAX_CONTEXT": max_context,
        "KVGATE_SEATS": seats,
        "KVGATE_QUEUE_TIMEOUT": patience,
    }
    settings = settings_or_exit({variable: text for variable, text in flags.items() if text is not None})
    draw = None if plot is None else _drawing(plot)
    from gateway.cli.replay_report import Progress, Report, report_json, report_text
    from gateway.replay.engine_choice import EngineWish, choose_engine
    from gateway.replay.reader import read_trace
    from gateway.replay.replay import budget_of
    from gateway.replay.replay import replay as run

    try:
        if not 0 < load < 1e6:
            raise ValueError(f"--load must be a number above 0, not {load:g}")
        for flag, number in (("--step-tokens", step_tokens), ("--sessions", sessions)):
            if number is not None and number < 1:
                raise ValueError(f"{flag} must be at least 1, not {number}")
        rows = _settings(settings, reserve=reserve, backends=backends, policy=policy, commitment=commitment, caps=caps)
        with Progress(len(rows)) as progress:
            trace = read_trace(files, pool=pool, on_line=progress.reads)
            if backends is None and trace.backends:
                rows = [replace(row, backends=len(trace.backends)) for row in rows]
            wish = EngineWish(
                engine,
                speed,
                step_tokens,
                settings.kv_blocks.fallback,
                settings.block_tokens.fallback,
                settings.max_context.fallback,
                settings.seats.fallback,
            )
            choice = choose_engine(trace, wish)
            site = _site(settings, choice, load=load, sessions=sessions, prefix_cache=prefix_cache)
            for row in rows:
                budget_of(site, row)  # all that cannot be is said before anything runs
            results = []
            for row in rows:
                progress.begins(len(trace))
                results.append(run(trace, site, row, on_progress=progress.came))
    except ValueError as error:
        exit_with(str(error))
    report = Report(tuple(map(str, files)), trace, site, choice, tuple(results), max(tenants, 0))
    if draw is not None and plot is not None:
        try:
            draw(plot, report)
        except (OSError, ValueError) as error:
            exit_with(f"--plot {plot}: {error}")
    typer.echo(json.dumps(report_json(report), indent=2) if as_json else report_text(report))


def _settings(
    settings: "Settings", *, reserve: str | None, backends: str | None, policy: str | None, commitment: str | None, caps: str
) -> "list[Setting]":
    """Every setting to try. Raises ValueError with a sentence."""
    from gateway.core.commitment import COMMITMENTS
    from gateway.core.reserve import Reserve
    from gateway.replay.setting import Caps, all_settings
    from gateway.setting_values import one_of, whole_number
    from gateway.setting_values import policy as read_policy

    return all_settings(
        [settings.reserve.fallback] if reserve is None else _each("--reserve", reserve, Reserve.parse),
        _each("--backends", backends or "1", whole_number(at_least=1)),
        [settings.policy] if policy is None else _each("--policy", policy, read_policy),
        [settings.commitment] if commitment is None else _each("--commitment", commitment, one_of(*COMMITMENTS)),
        _each("--caps", caps, Caps.parse),
    )


def _each(flag: str, text: str, read: Callable[[str], T]) -> list[T]:
    """The parts of a list, each once, in their order. Raises ValueError with a sentence that names the flag."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"{flag} is empty")
    try:
        return list(dict.fromkeys(read(part) for part in parts))
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None


def _site(settings: "Settings", choice: "EngineChoice", *, load: float, sessions: int | None, prefix_cache: bool) -> "Site":
    """Engine and gateway as they stand."""
    from gateway.core.lane_table import DEFAULT_LANES
    from gateway.core.offer import DefaultOutput, Overlong
    from gateway.lanes_file import read_lanes
    from gateway.replay.setting import Site

    output = settings.default_output
    return Site(
        engine=choice.profile,
        max_context=choice.max_context,
        patience_s=settings.queue_timeout_s,
        queue_requests=settings.queue_requests,
        backfill_passes=settings.backfill_passes,
        backfill_age_s=settings.backfill_age_s,
        has_guards=settings.guards == "on",
        gap_target_s=settings.itl_target_s,
        ttft_target_s=settings.ttft_target_s,
        default_output=DefaultOutput(tokens=output if isinstance(output, int) else None, require=output == "require"),
        overlong=Overlong(settings.overlong),
        lanes=DEFAULT_LANES if settings.lanes_file is None else read_lanes(settings.lanes_file),
        load=load,
        sessions=sessions,
        has_prefix_cache=prefix_cache,
    )


def _drawing(path: Path) -> "Callable[[Path, Report], None]":
    """What draws; or, if that cannot be, one line and the end of the process, before a long replay."""
    from gateway.setting_values import written_file

    try:
        written_file(str(path))
        from gateway.cli.replay_picture import draw
    except ValueError as error:
        exit_with(f"--plot: {error}")
    except ImportError:
        exit_with("a picture needs the extra `plot`: pip install 'kvgate[plot]'")
    return draw
