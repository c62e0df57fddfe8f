"""`python -m gateway.simulator`: the pretend engine alone, in the foreground, until SIGINT or SIGTERM.

Prints one line, `ready URL ...`, when it answers. With `--until-stdin-closes` it also ends when its standard input does, so
that it never outlives the process that started it, however that one ended.
"""

import argparse
import asyncio
import signal
import sys

from gateway.simulator.engine import EngineShape
from gateway.simulator.openai_requests import Served
from gateway.simulator.pace import Pace
from gateway.simulator.server import Simulator


def main() -> int:
    """Exit code: 0 after a stop, 2 for settings that cannot be or a port that is taken."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.simulator", description="A pretend vLLM with real block arithmetic."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one [0]")
    parser.add_argument("--model", default="simulated-8b", help="name of the model [%(default)s]")
    parser.add_argument("--num-gpu-blocks", type=int, default=1025, help="KV blocks, one of which holds nothing [%(default)s]")
    parser.add_argument("--block-size", type=int, default=16, help="tokens in a block [%(default)s]")
    parser.add_argument("--max-model-len", type=int, default=8192, help="tokens of a context [%(default)s]")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="sequences in the batch [%(default)s]")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, help="tokens in a step [%(default)s]")
    parser.add_argument("--speed", type=float, default=1.0, help="times faster than an 8B model on an A10G [%(default)s]")
    parser.add_argument("--mean-output", type=float, default=200.0, help="tokens of an answer that nothing cuts [%(default)s]")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when standard input ends")
    given = parser.parse_args()
    try:
        shape = EngineShape(
            num_blocks=given.num_gpu_blocks,
            block_tokens=given.block_size,
            max_context=given.max_model_len,
            max_running=given.max_num_seqs,
            step_tokens=given.max_num_batched_tokens,
            pace=Pace(speed=given.speed),
        )
        served = Served(name=given.model, max_context=given.max_model_len, mean_output_tokens=given.mean_output)
        asyncio.run(_run(Simulator(shape, served=served, host=given.host, port=given.port), given.until_stdin_closes))
    except (ValueError, OSError) as error:
        print(f"simulator: {error}", file=sys.stderr)
        return 2
    return 0


async def _run(simulator: Simulator, until_stdin_closes: bool) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with simulator:
        shape = simulator.shape
        size = f"{shape.num_blocks - 1} usable blocks of {shape.block_tokens} tokens, context {shape.max_context}"
        print(f"ready {simulator.url} model {simulator.served.name}, {size}", flush=True)
        transport = None
        if until_stdin_closes:
            end_of_input = _EndOfInput(stopped)
            transport, _ = await loop.connect_read_pipe(lambda: end_of_input, sys.stdin)
        await stopped.wait()
        if transport is not None:
            transport.close()


class _EndOfInput(asyncio.Protocol):
    """Sets an event when a pipe ends, whatever came through it."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


if __name__ == "__main__":
    sys.exit(main())
