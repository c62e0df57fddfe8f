"""What vLLM's OpenAI routes accept and refuse, for the pretend engine: a body in, an `Ask` out, or `Refused`.

Types are as lax as vLLM's (pydantic's lax mode): `"240"`, `240.0` and `true` are whole numbers, `"false"` and `0` are booleans.
Unknown fields are ignored. How long an answer becomes: with `ignore_eos: true` (vLLM's own field) it runs to the cap; else the
length is drawn by `seed` and the prompt together (`toy_text.natural_length`), and is at least `min_tokens`.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.simulator.scheduler import Sequence
from gateway.simulator.toy_text import VOCABULARY, count_tokens, natural_length, render_chat

COMPLETIONS_CAP = 16  # what an absent max_tokens means on /v1/completions
MOST_SAMPLES = 16_384  # of one prompt in vLLM; here of one request, as each costs memory before it is queued or refused


class Refused(Exception):
    """The engine answers with an error. kind: what vLLM puts in `type`."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


@dataclass(frozen=True, slots=True)
class Served:
    """The model that is served. mean_output_tokens: of answers that nothing cuts."""

    name: str = "simulated-8b"
    max_context: int = 8192
    mean_output_tokens: float = 200.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence to run: `sequence`, the seed of its text, and how it ends once all its tokens are out."""

    sequence: Sequence
    seed: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as the engine runs it: its samples in the order of their `index`."""

    is_chat: bool
    samples: tuple[Sample, ...]
    prompt_tokens: int  # over all prompts, each once, as usage reports it
    stream: bool
    include_usage: bool
    usage_on_every_chunk: bool


def read_json(body: bytes, content_type: str) -> dict[str, Any]:
    """The body as a JSON object. Raises Refused."""
    if content_type and not content_type.partition(";")[0].strip().lower().endswith("json"):
        raise Refused(400, "Unsupported Media Type: the body has to be application/json", kind="Bad Request")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        at = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise Refused(400, f"1 validation error: json_invalid at {at}", kind="Bad Request", param=f"body.{at}") from None
    if not isinstance(value, dict):
        raise Refused(400, "1 validation error: the body has to be an object", kind="Bad Request", param="body")
    return value


def check_model(body: Mapping[str, Any], served: Served) -> None:
    """An absent model is fine, another one is not. Raises Refused."""
    model = body.get("model")
    if model is not None and model != served.name:
        message = f"The model `{model!s:.200}` does not exist. Known here: {served.name}."
        raise Refused(404, message, kind="NotFoundError", param="model")


def read_ask(body: Mapping[str, Any], served: Served, *, is_chat: bool) -> Ask:
    """What to run for a body of /v1/chat/completions or /v1/completions. Raises Refused."""
    check_model(body, served)
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not (stream and isinstance(options, Mapping)):
        raise Refused(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    options = options or {}
    n = _whole_number(body, "n", least=1, most=MOST_SAMPLES) or 1
    if n > 1 and body.get("temperature") == 0:
        raise Refused(400, f"n must be 1 when using greedy sampling, got {n}.", param="n")
    prompts = [read_chat_prompt(body)] if is_chat else _read_prompts(body.get("prompt"))
    if n * len(prompts) > MOST_SAMPLES:
        raise Refused(400, f"{len(prompts)} prompts times n={n} are more than {MOST_SAMPLES} sequences.", param="n")
    cap = _read_cap(body, served, is_chat=is_chat)
    seed = _whole_number(body, "seed")
    least = _whole_number(body, "min_tokens", least=0) or 0
    ignore_eos = _flag(body, "ignore_eos")
    samples: list[Sample] = []
    for tokens, prompt_seed in prompts:
        room = _room_for_output(tokens, served)
        limit = room if cap is None else min(cap, room)
        for index in range(n):
            own_seed = zlib.crc32(b"%d/%d/%d" % (prompt_seed, -1 if seed is None else seed, index))
            natural = limit if ignore_eos else max(natural_length(own_seed, served.mean_output_tokens), least)
            sequence = Sequence(prompt_tokens=tokens, output_tokens=min(natural, limit))
            samples.append(Sample(sequence, own_seed, "length" if ignore_eos or natural > limit else "stop"))
    return Ask(
        is_chat=is_chat,
        samples=tuple(samples),
        prompt_tokens=sum(tokens for tokens, _ in prompts),
        stream=stream,
        include_usage=_flag(options, "include_usage"),
        usage_on_every_chunk=_flag(options, "continuous_usage_stats"),
    )


def read_chat_prompt(body: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a chat body's prompt, and a seed made from it. Raises Refused."""
    text = chat_text(body)
    return count_tokens(text), zlib.crc32(text.encode("utf-8", "surrogatepass"))


def chat_text(body: Mapping[str, Any]) -> str:
    """A chat body's prompt as one text. Raises Refused."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, Mapping) for message in messages):
        raise Refused(400, "1 validation error: messages has to be a list of objects", kind="Bad Request", param="messages")
    return render_chat(messages, body.get("tools"), add_generation_prompt=body.get("add_generation_prompt", True) is not False)


def _read_prompts(prompt: object) -> list[tuple[int, int]]:
    """(tokens, seed) of each prompt: a text, texts, token ids, or lists of them."""
    members: list[object] = [prompt]
    if isinstance(prompt, list) and not _is_ids(prompt):
        members = prompt
    kinds = {type(member) for member in members}
    if not members or len(kinds) != 1:
        raise _bad_prompt()
    return [_read_prompt(member) for member in members]


def _read_prompt(member: object) -> tuple[int, int]:
    if isinstance(member, str) and member:
        return count_tokens(member), zlib.crc32(member.encode("utf-8", "surrogatepass"))
    if isinstance(member, list) and _is_ids(member):
        if not all(0 <= token < VOCABULARY for token in member):
            raise Refused(400, f"Token ids have to be between 0 and {VOCABULARY - 1}.", param="prompt")
        return len(member), zlib.crc32(repr(member).encode())
    raise _bad_prompt()


def _is_ids(member: list[Any]) -> bool:
    return bool(member) and all(type(token) is int for token in member)


def _bad_prompt() -> Refused:
    message = "1 validation error: prompt has to be a text, texts, token ids or lists of them"
    return Refused(400, message, kind="Bad Request", param="prompt")


def _read_cap(body: Mapping[str, Any], served: Served, *, is_chat: bool) -> int | None:
    """The output cap; None: as far as the context goes. An absent one is 16 on completions, null there is the context."""
    param = "max_tokens"
    if is_chat and body.get("max_completion_tokens") is not None:
        param = "max_completion_tokens"
    if not is_chat and param not in body:
        return COMPLETIONS_CAP
    cap = _whole_number(body, param)
    if cap is None:
        return None
    if cap < 1:
        raise Refused(400, f"{param} must be at least 1, got {cap}. (parameter={param}, value={cap})", param=param)
    if cap > served.max_context:
        message = f"{param}={cap} is more than max_model_len={served.max_context}: ask for fewer output tokens."
        raise Refused(400, f"{message} (parameter={param}, value={cap})", param=param)
    return cap


def _room_for_output(prompt_tokens: int, served: Served) -> int:
    room = served.max_context - prompt_tokens
    if room < 0:
        message = (
            f"This model's maximum context length is {served.max_context} tokens, but the prompt has {prompt_tokens} tokens."
        )
        raise Refused(400, f"{message} (parameter=input_tokens, value={prompt_tokens})", param="input_tokens")
    if room == 0:
        raise Refused(400, "max_tokens must be at least 1, got 0.", param="max_tokens")
    return room


def _whole_number(body: Mapping[str, Any], name: str, *, least: int | None = None, most: int | None = None) -> int | None:
    """A member as a whole number the lax way; None if absent or null. Raises Refused."""
    value = body.get(name)
    if value is None:
        return None
    number: int | None = None
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):  # False for NaN and the infinities
        number = int(value)
    elif isinstance(value, str) and len(value) <= 20:
        try:
            number = int(value)
        except ValueError:
            number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        raise Refused(400, f"1 validation error: {name} is not a whole number that fits", kind="Bad Request", param=name)
    return number


def _flag(body: Mapping[str, Any], name: str) -> bool:
    """A member as a boolean the lax way; False if absent or null. Raises Refused."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    flag = known.get(str(value).lower()) if isinstance(value, (str, int, float)) else None
    if flag is None:
        raise Refused(400, f"1 validation error: {name} is not a boolean", kind="Bad Request", param=name)
    return flag
