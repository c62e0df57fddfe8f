"""Counts beside those of a real vLLM that runs beside the test, started with `--enable-auto-tool-choice`.

KVGATE_TEST_VLLM=http://127.0.0.1:8000 names it, KVGATE_TEST_TOKENIZER=/path/to/model the folder with its tokenizer and the
chat template that it was started with. Its context must hold 2,000 tokens.
"""

import asyncio
import json
import os
from pathlib import Path

import httpx
import pytest

from gateway.backends.backend_spec import BackendSpec
from gateway.backends.counting import ExactCounter
from gateway.backends.probe import Prober
from gateway.backends.roster import Roster
from gateway.clock import MonotonicClock
from gateway.core.names import BackendName
from gateway.dialects import DIALECTS
from gateway.tokens.bound import prompt_bound
from gateway.tokens.local import LocalTokenizer
from support.chats import chats
from support.scripted_engine import NO_TLS

A = BackendName("a")
CHATS = 200
PATH = "/v1/chat/completions"


@pytest.mark.engines
async def test_three_counts_of_two_hundred_chats_with_tools_are_one() -> None:
    """By the engine's /tokenize, by the local tokenizer, and by the usage of an answer that was really computed."""
    url, tokenizer = os.environ.get("KVGATE_TEST_VLLM"), os.environ.get("KVGATE_TEST_TOKENIZER")
    if url is None or tokenizer is None:
        pytest.skip("KVGATE_TEST_VLLM and KVGATE_TEST_TOKENIZER name no server and no tokenizer")
    prober = Prober(tls=NO_TLS, limit_s=60.0)
    roster = Roster([BackendSpec(A, url)], prober=prober, clock=MonotonicClock(), queue_timeout_s=60.0)
    local, engine = LocalTokenizer(Path(tokenizer)), ExactCounter(roster)
    counts: list[tuple[int, int, int, int]] = []
    try:
        await roster.look()
        await local.start()
        async with httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False) as client:
            for chat in chats(CHATS, seed=11, turns=2):
                body = json.dumps(chat | {"model": roster.view(A).models[0], "max_tokens": 1}).encode()
                request = DIALECTS[PATH].read_request(body)
                by_engine, by_tokenizer, answer = await asyncio.gather(
                    engine.count(A, request), local.count(request), client.post(PATH, content=body, headers=_JSON)
                )
                assert answer.status_code == 200, answer.text
                assert by_engine is not None
                assert by_tokenizer is not None
                bound = prompt_bound(request.prompts[0])
                assert bound is not None
                counts.append((answer.json()["usage"]["prompt_tokens"], *by_engine, *by_tokenizer, bound))
    finally:
        await local.stop()
        await roster.stop()
    assert len(counts) == CHATS
    assert [count for count in counts if len(set(count[:3])) > 1] == []
    assert all(bound >= truth for truth, _, _, bound in counts)
    total = sum(count[0] for count in counts)
    print(f"\n{CHATS} chats, {total} prompt tokens, bound / truth {sum(count[3] for count in counts) / total:.2f}")


_JSON = {"content-type": "application/json"}
