"""InferenceRequest: what a caller asked for, whatever the dialect, before any arithmetic.

A dialect parses the body once; only this value travels on. What the engine would need to count the prompt exactly stays
here as raw JSON, so that nothing is decoded that nobody asks for.

What is made for every request is not frozen, which would make it three times as dear; nobody changes it all the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

# Placement hashes no more of a prompt or of a session key than this (bytes).
AFFINITY_BYTES: Final = 1_024


class CapState(Enum):
    """Whether the body limits the output. `null` is not the same as absent: vLLM's completions treat them differently."""

    SET = "set"
    NULL = "null"
    ABSENT = "absent"


class MediaKind(StrEnum):
    """What a part of a prompt is that is not text. OTHER: nothing that can be bounded (tensors, and what nobody knows)."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    DOCUMENT = "document"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class MediaPart:
    """One image, sound, film or document, as far as its tokens depend on it.

    width, height: pixels, as its own header says; None where it is only linked to, or its header is not understood.
    """

    kind: MediaKind
    width: int | None = None
    height: int | None = None


@dataclass(slots=True)
class Prompt:
    """One prompt of a request, in the terms in which it can be bounded without a tokenizer.

    text_bytes: UTF-8 bytes of everything that the template renders (messages, tool schemas, response_format).
    token_ids: its exact length in tokens where the caller sent ids, else None.
    media_parts: images, audio and the like, whose token cost is not in the text.
    has_own_template: the caller sent the template too, which may repeat any text as often as it likes.
    least_text_bytes: UTF-8 bytes that are rendered for certain; looked at only where the text is large, else 0.
    media: what is known of the media parts; of fewer than media_parts where not all were looked at.
    may_be_cut: the caller lets the engine drop a part of the prompt, so that its tokens tell nothing about its text.
    said: the beginning of a long text of a chat that every template renders; empty where there is none, or nobody looked.
    """

    text_bytes: int
    messages: int = 0
    tools: int = 0
    token_ids: int | None = None
    media_parts: int = 0
    has_own_template: bool = False
    least_text_bytes: int = 0
    media: tuple[MediaPart, ...] = ()
    may_be_cut: bool = False
    said: str = field(default="", repr=False)


Members = Mapping[str, bytes]
"""Members of a body by their names, as raw JSON."""


@dataclass(slots=True)
class Countable:
    """What an engine needs to count the prompts exactly, as raw JSON members of the body.

    chat: the members of a chat body that its template reads (`messages`, `tools`, ...), None for completions.
    texts: one raw JSON string per text prompt of a completions body, in order; prompts sent as ids are not here.
    anthropic: the members of a Messages body that an engine's own count_tokens reads, None for other dialects.
    responses: the members of a Responses body that an engine's own input_tokens reads, None for other dialects; `chat` is
    then the chat that vLLM renders such a body as, None where that is not known.
    slack_tokens: by how much the count of `chat` may differ from the truth; 0: not at all.
    """

    chat: Members | None = None
    texts: tuple[bytes, ...] = ()
    anthropic: Members | None = None
    responses: Members | None = None
    slack_tokens: int = 0


Uncounted = tuple[Callable[[bytes], Countable], bytes]
"""What makes a Countable of a body, and the body: few prompts are ever counted."""


@dataclass(slots=True)
class InferenceRequest:
    """A request as its dialect read it.

    n, best_of: samples of each prompt; which of them counts is the engine's rule (core/engine_rules.py).
    cap_tokens: the output cap of one sequence, None unless cap is SET.
    start: what placement hashes, or the text that it stands for: the session key if there is one, else the start of the prompt.
    is_prompt_only: the prompts are read and nothing is written (embeddings); the cap is then 1, which adds no token.
    prompt_name, cap_param: what the caller's format calls its prompt (None: as OpenAI does) and its output cap.
    priority: as the client wrote it for an engine that ranks requests, where the lower number goes first; None: it wrote none.
    """

    model: str | None
    prompts: tuple[Prompt, ...]
    cap: CapState
    cap_tokens: int | None
    is_chat: bool
    stream: bool = False
    start: bytes | str = field(default=b"", repr=False)
    to_count: Countable | Uncounted = field(default_factory=Countable, repr=False)
    n: int = 1
    best_of: int = 1
    wants_usage: bool = False  # the caller itself asked for the usage event of a stream
    usage_is_unsaid: bool = False  # nothing in the body is about that event
    priority: int | None = None
    is_prompt_only: bool = False
    prompt_name: str | None = None
    cap_param: str = "max_tokens"

    @property
    def countable(self) -> Countable:
        """What can be counted exactly. A body is taken apart when somebody asks, once, and kept no longer."""
        if isinstance(self.to_count, tuple):
            make, body = self.to_count
            self.to_count = make(body)
        return self.to_count

    @property
    def affinity(self) -> bytes:
        """What placement hashes. It is asked for only where there is a choice, so a text is not encoded before that."""
        start = self.start
        return (start.encode() if isinstance(start, str) else start)[:AFFINITY_BYTES]

    @property
    def prompt_param(self) -> str:
        """The member at fault where a prompt is too long."""
        return self.prompt_name or ("messages" if self.is_chat else "prompt")
