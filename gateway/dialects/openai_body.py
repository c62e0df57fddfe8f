"""What the bodies of OpenAI's chat and completions have in common, and how an odd one is refused.

Only what decides about memory is typed, and that strictly: engines take `"240"`, `240.0` and `true` for numbers and
`"false"` for a flag, each in its own way, and what is held must be what will run. Numbers of sampling are only looked at
for being numbers at all (`1e400` and a seed of 5,000 digits are not); what they mean is the engine's affair.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from gateway.core.errors import InvalidRequest
from gateway.core.request import AFFINITY_BYTES, CapState, InferenceRequest
from gateway.dialects import json_edit

# The largest cap that every engine reads as it is written: llama.cpp keeps it in 32 bits, and a wrapped one means "no limit".
MAX_CAP_TOKENS = 2**31 - 1
# vLLM's own limit.
MAX_SAMPLES = 16_384

# A sampling parameter (of which `logit_bias` is the largest) is read into objects; more than this takes too long (bytes).
MEMBER_LIMIT_BYTES = 1 << 20

CapTokens = Annotated[int, msgspec.Meta(ge=-MAX_CAP_TOKENS, le=MAX_CAP_TOKENS)] | msgspec.UnsetType | None
Samples = Annotated[int, msgspec.Meta(ge=1, le=MAX_SAMPLES)] | None
Priority = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | msgspec.UnsetType | None
Raw = msgspec.Raw | msgspec.UnsetType

# To look up a member of an enum costs as much as a call.
_SET: Final = CapState.SET
_NULL: Final = CapState.NULL
_ABSENT: Final = CapState.ABSENT

_Body = TypeVar("_Body")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIBody(msgspec.Struct):
    """The members of a body that say how much memory it may take, and those whose numbers must be numbers.

    `n_predict` and `n_cmpl` are llama.cpp's own names; there they win over the standard ones (measured, b11549).
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | msgspec.UnsetType | None = UNSET
    max_tokens: CapTokens = UNSET
    max_completion_tokens: CapTokens = UNSET
    n_predict: CapTokens = UNSET
    n: Samples = None
    n_cmpl: Samples = None
    best_of: Samples = None
    use_beam_search: bool | None = None
    echo: bool | None = None

    # What clients send to keep the turns of one session together: OpenAI's name and vLLM's. `user` names a person, who may
    # run many sessions that share nothing.
    prompt_cache_key: Raw = UNSET
    session_id: Raw = UNSET

    # Decoded for being numbers at all.
    temperature: Any = UNSET
    top_p: Any = UNSET
    top_k: Any = UNSET
    min_p: Any = UNSET
    seed: Any = UNSET
    presence_penalty: Any = UNSET
    frequency_penalty: Any = UNSET
    repetition_penalty: Any = UNSET
    length_penalty: Any = UNSET
    logit_bias: Any = UNSET
    logprobs: Any = UNSET
    top_logprobs: Any = UNSET
    prompt_logprobs: Any = UNSET
    min_tokens: Any = UNSET
    # Whole and strict: what ranks a request in the engine must be what was looked at.
    priority: Priority = UNSET
    thinking_token_budget: Any = UNSET
    truncate_prompt_tokens: Any = UNSET

    @property
    def samples(self) -> int:
        """Sequences of one prompt; with beam search, the beam's width."""
        return max(self.n or 1, self.n_cmpl or 1)

    @property
    def may_truncate(self) -> bool:
        """The engine is asked to cut the prompt, so that none is too long."""
        return self.truncate_prompt_tokens is not UNSET and self.truncate_prompt_tokens is not None

    @property
    def engine_priority(self) -> int | None:
        return self.priority if isinstance(self.priority, int) else None

    @property
    def wants_usage(self) -> bool:
        return isinstance(self.stream_options, StreamOptions) and self.stream_options.include_usage is True


_NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "min_tokens",
    "thinking_token_budget",
    "truncate_prompt_tokens",
)
_RAW_NUMBERS = msgspec.json.Decoder(msgspec.defstruct("_RawNumbers", [(name, Raw, UNSET) for name in _NUMBERS]))


_STREAM_OPTIONS = msgspec.json.Decoder(StreamOptions | None)
_WHERE = re.compile(r" - at `\$\.?([A-Za-z_]\w*)?.*`$", re.DOTALL)


def decode_body(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """A whole body of OpenAI's formats. Raises InvalidRequest, also where a sampling parameter holds what is no number to
    every reader, or far too much."""
    if len(body) > MEMBER_LIMIT_BYTES:
        read = decode(_RAW_NUMBERS, body)
        for name in _NUMBERS:
            raw = getattr(read, name)
            if raw is not UNSET and len(raw) > MEMBER_LIMIT_BYTES:
                raise InvalidRequest(f"{name} is larger than {MEMBER_LIMIT_BYTES} bytes.", param=name)
    return decode(decoder, body)


def decode(decoder: msgspec.json.Decoder[_Body], body: bytes, *, param: str | None = None) -> _Body:
    """The decoded body. Raises InvalidRequest, in words that never repeat a value of the caller's.

    param: the member that `body` is the value of, when it is not a whole body.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look inside members that nobody asked for
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        where = _WHERE.search(str(error))
        named = param or (where.group(1) if where else None)
        what = _WHERE.sub("", str(error))
        raise InvalidRequest(f"{named or 'The body'}: {what[:1].lower()}{what[1:]}.", param=named) from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not UTF-8 (byte {error.start}).", param=param) from None
    except msgspec.DecodeError as error:
        # Half a surrogate pair is refused here too: it can be read by some, and written by nobody.
        what = str(error).removeprefix("JSON is malformed: ")
        raise InvalidRequest(f"The body is not valid JSON: {what[:1].lower()}{what[1:]}.", param=param) from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", param=param) from None


def decode_at_once(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body | None:
    """The body with all that its prompt is made of; None where it is large, or where anything in it is wrong.

    Who then reads it member by member finds out what, and of which member it is.
    """
    if len(body) > MEMBER_LIMIT_BYTES:
        return None
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look inside members that nobody asked for
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def raw_json(member: msgspec.Raw | msgspec.UnsetType) -> bytes:
    """The JSON of a member that was left undecoded; `null` where it is absent."""
    return b"null" if member is UNSET else bytes(member)


def add_choices(request: InferenceRequest, body: OpenAIBody) -> None:
    """Complete a request of chat or completions by what its body says about samples, usage and priority."""
    options = body.stream_options
    if options is UNSET:
        request.usage_is_unsaid = True
    elif isinstance(options, StreamOptions):
        request.wants_usage = options.include_usage is True
    if body.n is not None or body.n_cmpl is not None:
        request.n = body.samples
    if body.best_of is not None:
        request.best_of = body.best_of
    if body.priority is not UNSET:
        request.priority = body.priority


def read_cap(body: OpenAIBody, obeyed: Sequence[str], also_obeyed: Sequence[str]) -> tuple[CapState, int | None]:
    """The output cap: whether there is one, and its tokens.

    obeyed: members that every engine of this route reads, the strongest first. also_obeyed: members that some engine
    lets win over those. What only some read is no cap by itself; beside a cap, the larger of the two is held.
    Raises InvalidRequest for a cap below 1, but for 0 where `echo` makes it legal (the engine then runs one token), and
    for one cap that lifts another.
    """
    state, cap = _ABSENT, None
    for name in obeyed:
        value = getattr(body, name)
        if value is UNSET:
            continue
        if value is None:
            state = _NULL if cap is None else state
            continue
        if value < 1:
            least = 0 if body.echo and name == "max_tokens" and "max_completion_tokens" not in obeyed else 1
            if value < least:
                raise InvalidRequest(f"{name} must be at least {least}, got {value}.", param=name)
        if cap is None:
            state, cap = _SET, value or 1
    if cap is None:
        return state, None
    for name in also_obeyed:
        value = getattr(body, name)
        if value is UNSET or value is None:
            continue
        if value < 0:
            raise InvalidRequest(f"{name} {value} (no limit) contradicts the other cap of this request.", param=name)
        cap = max(cap, value)
    return state, cap


def write_cap(
    body: bytes, cap_tokens: int, *, obeyed: Sequence[str], also_obeyed: Sequence[str], absent: str = "max_tokens"
) -> bytes:
    """The body with its cap set: in every member of `obeyed` that stands in it, in `absent`, one of them, if none does.

    A member of `also_obeyed` is lowered to the cap, never raised. No key comes to stand twice: Dynamo refuses that.
    """
    edits: list[tuple[int, int, bytes]] = []
    is_set = False
    for member in json_edit.members(body):
        if member.key in obeyed:
            is_set = True
        elif member.key not in also_obeyed or _is_within(body[member.start : member.end], cap_tokens):
            continue
        edits.append((member.start, member.end, b"%d" % cap_tokens))
    edited = json_edit.replace(body, edits)
    return edited if is_set else json_edit.append_member(edited, absent, b"%d" % cap_tokens)


def _is_within(value: bytes, cap_tokens: int) -> bool:
    return value.isdigit() and len(value) <= len(str(cap_tokens)) and int(value) <= cap_tokens


def limit_priority(body: bytes, most_urgent: int) -> bytes:
    """The body with every `priority` in it at least `most_urgent`, since engines let the lower go first.

    Of several members of that name another reader may take another one, so each is looked at. What is no whole number is
    not left to the engine's reading either, but for `null`, which asks for nothing.
    """
    edits = [
        (member.start, member.end, b"%d" % most_urgent)
        for member in json_edit.members(body)
        if member.key == "priority" and not _is_at_least(body[member.start : member.end], most_urgent)
    ]
    return json_edit.replace(body, edits) if edits else body


def _is_at_least(value: bytes, least: int) -> bool:
    if value == b"null":
        return True
    return len(value) <= 20 and value.removeprefix(b"-").isdigit() and int(value) >= least


def ask_usage(body: bytes, request: InferenceRequest) -> bytes:
    """The body with `stream_options.include_usage` true, whatever else stands in `stream_options`.

    Unchanged where the caller has set `continuous_usage_stats` without it: the answer would then carry usage in every event.
    """
    if request.usage_is_unsaid:
        return json_edit.append_member(body, "stream_options", b'{"include_usage":true}')
    # Of several, engines read the last.
    member = [member for member in json_edit.members(body) if member.key == "stream_options"][-1]
    value = body[member.start : member.end]
    options = _STREAM_OPTIONS.decode(value)
    if options is not None and (options.continuous_usage_stats or options.include_usage):
        return body
    asked = b'{"include_usage":true}' if value == b"null" else json_edit.set_member(value, "include_usage", b"true")
    return json_edit.replace(body, [(member.start, member.end, asked)])


def session_key(body: OpenAIBody) -> bytes | None:
    """What placement hashes where the body names its session, as its beginning in JSON; None where it names none."""
    for key in (body.prompt_cache_key, body.session_id):
        if key is not UNSET and (raw := bytes(key)) != b"null":
            return raw[:AFFINITY_BYTES]
    return None
