"""What the demo shows and how it starts its processes, without running it whole."""

import contextlib
import io
import socket

import pytest
from rich.console import Console

from gateway.cli.demo_processes import DemoFailed, free_port, running_gateway, running_simulator
from gateway.cli.demo_view import DemoView, GateReading, Moment
from gateway.simulator.load import Tally
from gateway.simulator.scrape import EngineReading, read_engine


def moment(gate: GateReading | None) -> Moment:
    tally = Tally(total=64, waiting=5, streaming=7, completed=12)
    engine = EngineReading(running=7, waiting=3, preemptions=9, used_fraction=0.5)
    return Moment("Through kvgate", 3.0, tally, engine, 4, gate)


def shown(gate: GateReading | None, *, terminal: bool) -> str:
    written = io.StringIO()
    with DemoView(beside_json=False) as view:
        view._console = Console(file=written, force_terminal=terminal, width=100, color_system=None)
        view.show(moment(gate))
        view.show(moment(gate))
    return written.getvalue()


def test_on_a_terminal_the_bars_show_what_is_held_and_queued() -> None:
    text = shown(GateReading(held_blocks=364, budget_blocks=384, queued=5), terminal=True)
    for part in ("12 of 64", "50%", "364 of 384 blocks", "queued in kvgate", "preemptions"):
        assert part in text
    assert "held by kvgate" not in shown(None, terminal=True)


def test_elsewhere_there_is_a_plain_line_now_and_then() -> None:
    text = shown(GateReading(held_blocks=364, budget_blocks=384, queued=5), terminal=False)
    assert text.count("\n") == 1  # the second came too soon after the first
    assert "12 of 64 done" in text
    assert "5 queued in kvgate, 4 preemptions, KV in use 50%" in text
    assert "\x1b" not in text


def test_a_preferred_port_that_is_taken_is_passed_over() -> None:
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        assert free_port(number) not in (0, number)
    assert free_port(number) == number


async def test_a_simulator_that_cannot_start_says_why() -> None:
    with pytest.raises(DemoFailed, match="needs 256 blocks"):
        async with running_simulator("--num-gpu-blocks", "10", "--max-model-len", "4096"):
            pass


async def test_a_gateway_that_cannot_start_says_why() -> None:
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(DemoFailed, match=str(number)):
            async with running_gateway("http://127.0.0.1:9", port=number, admin_port=free_port()):
                pass


async def test_children_have_ended_when_their_block_is_left() -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with running_simulator() as (child, url):
            assert (await read_engine(url)).preemptions == 0
            raise ZeroDivisionError
    assert child.process.returncode is not None
