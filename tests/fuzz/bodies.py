"""Request bodies: good samples to mutate, a grammar that makes more of them, and what any of them must do to a dialect."""

import json
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from gateway.backends.engines.table import ENGINES
from gateway.core.engine_rules import EngineRules
from gateway.core.errors import InvalidRequest
from gateway.core.geometry import Weighing
from gateway.core.ledger import Budget
from gateway.core.offer import CountFirst, CountKind, DefaultOutput, Offer, Overlong, PromptCount, Unfit, make_offer
from gateway.core.prompt_offer import make_prompt_offer
from gateway.core.request import CapState, InferenceRequest
from gateway.dialects.dialect import Dialect, ErrorFacts
from gateway.web.weigh import bound_of

SAMPLES: dict[str, list[bytes]] = {
    "/v1/chat/completions": rb"""
{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":16}
{"messages":[{"role":"user","content":[{"type":"text","text":"caf\u00e9"},{"type":"image_url","image_url":{"url":"d"}}]}]}
{"messages":[{"role":"system","content":"x"}],"max_completion_tokens":5,"max_tokens":null,"n":2,"stream":true}
{"messages":[{"role":"tool","tool_call_id":"1","content":"ok"}],"tools":[{"function":{"name":"f"}}],"stream":true}
{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]}],"stream_options":{"x":1}}
 { "messages" : [ { "role":"user", "content":null } ] , "temperature":0.7,"seed":7,"n_predict":-1,"logit_bias":{"1":2}}
{"messages":[{"role":"user"}],"stream_options":{"continuous_usage_stats":true},"stream":true,"session_id":"s"}
{"messages":[{"content":"\ud83d\ude00"}],"response_format":{"type":"text"},"max_tokens":1,"max_tokens":2,"best_of":3}
{"messages":[{}],"chat_template_kwargs":{"x":false},"use_beam_search":true,"stream_options":{"include_usage":false}}
""".strip().split(b"\n"),
    "/v1/completions": rb"""
{"model":"m","prompt":"once","max_tokens":16}
{"prompt":["a","b"],"n":2,"best_of":3,"max_tokens":null,"stream":true,"stream_options":null}
{"prompt":[1,2,3],"max_tokens":0,"echo":true,"suffix":"x","logprobs":1,"prompt_cache_key":"k"}
{"prompt":[[1],[2,3]],"max_completion_tokens":9,"n_predict":4,"stream":false,"n_cmpl":2}
{"prompt":null,"prompt_embeds":["AAAA"],"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}
""".strip().split(b"\n"),
    "/v1/responses": rb"""
{"model":"m","input":"hi","max_output_tokens":16}
{"input":[{"role":"user","content":"caf\u00e9"}],"instructions":"be brief","stream":true,"reasoning":{"effort":"low"}}
{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"},{"type":"input_image","image_url":"d"}]}]}
{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1}"},{"type":"function_call_output","output":"o"}]}
{"input":[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"a"}]},{"role":"assistant","content":"b"}]}
{"input":"a","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"max_output_tokens":null,"n_predict":-1}
{"input":"a","tools":[{"type":"web_search_preview"}],"max_output_tokens":3,"max_completion_tokens":9,"max_tokens":2,"n":2}
{"input":[{"type":"item_reference","id":"x"}],"previous_response_id":"r","truncation":"auto","store":false,"background":null}
{"input":[{"role":"assistant","type":"message","content":[{"type":"output_text","text":"b"}],"status":"incomplete"}],"text":{}}
{"input":"\ud83d\ude00","max_output_tokens":1,"max_output_tokens":2,"temperature":0.5,"top_k":3,"prompt_cache_key":"k"}
""".strip().split(b"\n"),
    "/v1/embeddings": rb"""
{"model":"m","input":"hi"}
{"input":["a","caf\u00e9",""],"encoding_format":"base64","dimensions":8,"user":"u"}
{"input":[1,2,3],"truncate_prompt_tokens":2}
{"input":[[1],[2,3]],"max_tokens":5}
{"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"a":1}}
{"input":[[{"role":"user","content":[{"type":"text","text":"x"}]}],[{"content":"y"}]],"padding":"max_length"}
{"input":"a","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"d"}}]}],"stream":true}
""".strip().split(b"\n"),
    "/completion": rb"""
{"model":"m","prompt":"once","n_predict":16}
{"prompt":["a","b"],"n":2,"n_predict":-1,"stream":true,"cache_prompt":true}
{"prompt":[1,"a",3],"n_predict":0,"max_tokens":5,"id_slot":1}
{"prompt":[[1],[2,"x"],"y"],"max_completion_tokens":9,"n_predict":null,"n_cmpl":2}
{"prompt":{"prompt_string":"caf\u00e9","multimodal_data":["AA"]},"response_fields":["content"],"n_predict":3,"n_predict":4}
{"prompt":[{"prompt_string":"a"},[]],"samplers":["top_k"],"temperature":0.5,"max_tokens":2147483647}
""".strip().split(b"\n"),
    "/v1/messages": rb"""
{"model":"m","max_tokens":16,"messages":[{"role":"user","content":"hi"}]}
{"max_tokens":16,"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"caf\u00e9"}]}],"stream":true}
{"system":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"assistant","content":[]}]}
{"max_tokens":9,"thinking":{"type":"enabled","budget_tokens":5},"messages":[{"content":[{"type":"thinking","thinking":"a"}]}]}
{"max_tokens":1,"max_tokens":2,"tools":[{"name":"f","input_schema":{"type":"object"}}],"messages":[{"role":"user"}]}
{"messages":[{"content":[{"type":"tool_use","id":"1","name":"f","input":{"a":[1,"b"]}}]},{"role":"system","content":"x"}]}
{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"ok"}]}]}]}
{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA"}}]}],"max_tokens":3}
{"messages":[{"content":[{"type":"document","source":{"type":"text","data":"x"},"title":"t"}]}],"temperature":0.5,"top_k":3}
{"messages":[{"content":"\ud83d\ude00"}],"tool_choice":{"type":"any"},"output_config":{"effort":"low"},"max_tokens":null}
""".strip().split(b"\n"),
}

_TEXT = st.text(alphabet=st.sampled_from('ab"\\{}[],: \n\té中😀\u0301'), max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_CAPS: st.SearchStrategy[Any] = st.sampled_from([None, -1, 0, 1, 16, 2**31 - 1, 2**31, 1.0, "7", True, [], 10**30])
_MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["m", "", None, 3]),
    "stream": st.sampled_from([True, False, None, "true", 1]),
    "stream_options": st.sampled_from([None, {}, {"include_usage": True}, {"include_usage": False}, {"x": 1}, [], True]),
    "max_tokens": _CAPS,
    "max_completion_tokens": _CAPS,
    "max_output_tokens": _CAPS,
    "instructions": st.none() | _TEXT | st.just(7),
    "background": st.sampled_from([None, False, True, 1]),
    "truncation": st.sampled_from([None, "auto", "disabled", 7]),
    "truncate_prompt_tokens": st.sampled_from([None, 5, -1]),
    "previous_response_id": st.sampled_from([None, "r"]),
    "reasoning": st.sampled_from([None, {"effort": "low"}, {"effort": 7}, []]),
    "n_predict": _CAPS,
    "n": st.sampled_from([None, 0, 1, 3, 16_384, 16_385, "2"]),
    "n_cmpl": st.sampled_from([None, 1, 2]),
    "best_of": st.sampled_from([None, 1, 4]),
    "echo": st.sampled_from([None, True, False]),
    "temperature": _JSON,
    "tools": _JSON,
    "response_format": _JSON,
    "session_id": _JSON,
    "suffix": st.none() | _TEXT,
    "chat_template": st.none() | _TEXT,
    "system": _TEXT | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _TEXT}) | _JSON, max_size=2) | _JSON,
    "thinking": st.sampled_from([None, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, 7]),
    "extra": _JSON,
}
_CONTENT = _TEXT | st.none() | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _TEXT}) | _JSON, max_size=3)
_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", "x"]), "content": _CONTENT}, optional={"name": _JSON}),
    max_size=3,
)
_BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "document", "thinking", "x"])},
    optional={
        "text": _TEXT,
        "thinking": _TEXT,
        "input": _JSON,
        "content": _TEXT | st.lists(_JSON, max_size=2) | _JSON,
        "source": st.fixed_dictionaries({"type": st.sampled_from(["text", "base64", "content"])}, optional={"data": _JSON}),
        "is_error": st.booleans(),
    },
)
_TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "x"]), "content": _TEXT | st.lists(_BLOCK | _JSON, max_size=3)}
    ),
    max_size=3,
)
_ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "function_call", "function_call_output", "reasoning", "item_reference", "input_image", "x", 3]
        ),
        "role": st.sampled_from(["user", "assistant", "system", "developer", "x", None]),
        "content": _CONTENT
        | st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["input_text", "output_text", "reasoning_text", "input_image", "input_file"])},
                optional={"text": _TEXT, "image_url": _JSON, "file_id": _TEXT},
            ),
            max_size=2,
        ),
        "output": _JSON,
        "summary": _JSON,
        "arguments": _TEXT,
        "call_id": _TEXT,
        "name": _TEXT,
        "status": st.sampled_from(["completed", "incomplete", None]),
        "encrypted_content": _JSON,
    },
)
_ITEMS = _TEXT | st.lists(_ITEM | _JSON, max_size=4) | _JSON
_NATIVE = st.recursive(
    st.integers(-1, 9) | _TEXT | st.fixed_dictionaries({"prompt_string": _TEXT}, optional={"multimodal_data": _JSON}),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)
_PROMPTS = st.none() | _TEXT | st.lists(st.integers(-1, 9) | _TEXT | st.lists(st.integers(0, 9), max_size=3), max_size=4)


@st.composite
def grammar(draw: st.DrawFn, path: str) -> bytes:
    """A body of that route: members of the right names with right and wrong values, in any order, some of them twice."""
    said = {
        "/v1/chat/completions": ("messages", _MESSAGES),
        "/v1/completions": ("prompt", _PROMPTS),
        "/v1/messages": ("messages", _TURNS),
        "/v1/responses": ("input", _ITEMS),
        "/v1/embeddings": ("input", _PROMPTS | _MESSAGES | st.lists(_MESSAGES, max_size=2)),
        "/completion": ("prompt", _NATIVE),
    }[path]
    pairs: list[tuple[str, Any]] = [(said[0], draw(said[1]))]
    pairs += [(key, draw(_MEMBERS[key])) for key in draw(st.lists(st.sampled_from(sorted(_MEMBERS)), max_size=7))]
    pairs = draw(st.permutations(pairs))
    as_ascii, gap = draw(st.booleans()), draw(st.sampled_from(["", " ", "\n\t"]))
    members = [f"{gap}{json.dumps(key)}{gap}:{gap}{json.dumps(value, ensure_ascii=as_ascii)}{gap}" for key, value in pairs]
    return ("{" + ",".join(members) + "}").encode("utf-8", "surrogatepass")


# Whoever reads numbers as texts is stopped by none of them.
_READER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_BUDGET = Budget(1_000, 50, 64)
_RULES = (
    EngineRules(),
    EngineRules(16, True, True, True, 1, queues_prompts=True),
    EngineRules(has_best_of=False, fair_share_tokens=512),
)


def odd_shapes(sample: bytes) -> Iterator[bytes]:
    """The sample with each of its values, one at a time, in the place of which stands one of another shape."""
    body = json.loads(sample)
    odd: Any
    for holder, key in list(_places(body)):
        value = holder[key]
        for odd in ({}, [], {"type": {}}, [{"type": []}], 5, None, True, "x"):
            holder[key] = odd
            yield json.dumps(body).encode()
        holder[key] = value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, member in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from _places(member)


def check_body(dialect: Dialect, body: bytes) -> None:
    """Reads, weighs and edits one body. Raises if it breaks what a dialect promises."""
    try:
        request = dialect.read_request(body)
    except InvalidRequest as error:
        check_refusal(dialect, error, body)
        return
    asked = _READER.decode(body.decode())
    assert isinstance(asked, dict)
    check_request(dialect, request, asked)
    check_offers(request)
    check_edits(dialect, request, body, asked)


def check_refusal(dialect: Dialect, error: InvalidRequest, body: bytes) -> None:
    told = json.loads(dialect.error_body(ErrorFacts(400, error.reason.value, error.message, error.param, error.facts)))
    assert set(told["error"]) >= {"message", "type", "param", "code"}
    assert len(error.message) < 500
    assert "\n" not in error.message


# The members of each format that hold its cap, the strongest first.
_CAPS_OF = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/messages": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/completion": ("n_predict", "max_completion_tokens", "max_tokens"),
}
# Those beside them that some engine obeys and a written cap may lower, and the one that is written where none stands.
_LOWERED = {
    "/v1/chat/completions": ("n_predict",),
    "/v1/completions": ("max_completion_tokens", "n_predict"),
    "/v1/responses": ("max_completion_tokens", "n_predict"),
}
_WRITTEN = {"/v1/responses": "max_output_tokens", "/completion": "n_predict"}
_WITH_SAMPLES = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/completion"))
_ASKS_USAGE = frozenset(("/v1/chat/completions", "/v1/completions"))


def check_request(dialect: Dialect, request: InferenceRequest, asked: dict[str, Any]) -> None:
    """What was read is what another reader finds in the same bytes."""
    assert request.model == asked.get("model")
    assert request.stream is (asked.get("stream") is True and not request.is_prompt_only)
    assert request.prompts
    assert request.n >= 1
    assert request.best_of >= 1
    assert request.n >= (int(asked.get("n") or 1) if dialect.path in _WITH_SAMPLES else 1)
    assert (request.cap is CapState.SET) == (request.cap_tokens is not None)
    if request.cap_tokens is not None and not request.is_prompt_only:
        obeyed = next(asked[name] for name in _CAPS_OF[dialect.path] if asked.get(name) is not None)
        assert request.cap_tokens >= int(obeyed)
        assert 1 <= request.cap_tokens < 2**31
    options = asked.get("stream_options") if dialect.path in _ASKS_USAGE else None
    assert request.wants_usage is (isinstance(options, dict) and options.get("include_usage") is True)
    assert len(request.affinity) <= 1_024 * 4


def check_offers(request: InferenceRequest) -> None:
    """It can be weighed, whatever the engine: never less than a block, and never more than there is."""
    bound = bound_of(request)
    for rules in _RULES:
        for context in (None, 128, 4_096):
            for count in (bound, PromptCount(tuple(7 for _ in bound.tokens), CountKind.EXACT)):
                weighing = Weighing(16, context, None, rules.spare_blocks)
                offer: Offer | CountFirst | Unfit
                if request.is_prompt_only:
                    offer = make_prompt_offer(request, count, rules=rules, weighing=weighing, budget=_BUDGET)
                else:
                    offer = make_offer(
                        request,
                        count,
                        rules=rules,
                        weighing=weighing,
                        budget=_BUDGET,
                        default_output=DefaultOutput(),
                        overlong=Overlong.PASS,
                    )
                if isinstance(offer, Offer):
                    assert 1 <= offer.worst_blocks <= _BUDGET.blocks
                    assert offer.seats >= 1
                    assert offer.cap_to_write is None or offer.cap_to_write >= 1
                elif isinstance(offer, Unfit):
                    assert offer.message
                    assert all(type(number) is int for number in offer.facts.values())
    for engine in ENGINES.values():
        for call in engine.count_calls(request) or ():
            json.loads(call.body, parse_int=str)


def check_edits(dialect: Dialect, request: InferenceRequest, body: bytes, asked: dict[str, Any]) -> None:
    """Edits change what they are for and nothing else."""
    capped = dialect.write_cap(body, 7)
    if request.is_prompt_only:
        assert capped is body
        return
    changed = _READER.decode(capped.decode())
    caps = {*_CAPS_OF[dialect.path], *_LOWERED.get(dialect.path, ())}
    assert {key: value for key, value in changed.items() if key not in caps} == {
        key: value for key, value in asked.items() if key not in caps
    }
    again = dialect.read_request(capped)
    assert again.cap_tokens == 7, (again.cap_tokens, capped)
    if request.cap is not CapState.SET:
        assert set(changed) - set(asked) <= {_WRITTEN.get(dialect.path, "max_tokens")}
    if request.stream and not request.wants_usage:
        asking = dialect.ask_usage(body, request)
        if asking is not body:
            assert dialect.read_request(asking).wants_usage
            edited = _READER.decode(asking.decode())
            assert {**edited, "stream_options": 0} == {**asked, "stream_options": 0}


def check_mutated(dialect: Dialect) -> Any:
    def check(body: bytes, _: random.Random) -> None:
        check_body(dialect, body)

    return check
