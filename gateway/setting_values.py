"""What the text of a setting may be: one function a kind, text in, value out, and back again for showing.

Each raises ValueError with a sentence for the operator; the setting's name is put before it by the caller. The sentence
repeats what was written, except where that could be a secret.
"""

import math
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from pydantic import SecretStr

from gateway.backend_settings import BackendAddress, PerBackend, parse_per_backend
from gateway.core.geometry.precision import AUTO
from gateway.core.geometry.precision import kv_dtype as known_dtype
from gateway.core.policies import POLICIES
from gateway.core.request import MediaKind
from gateway.units import parse_bytes, parse_duration

T = TypeVar("T")

MASK: Final = "********"
_LEAST_CARD_BYTES: Final = 2**20


def timeout(text: str) -> float:
    """Seconds, above 0: a clock that runs out at once would end every request."""
    duration_s = parse_duration(text)
    if duration_s <= 0:
        raise ValueError(f"{text!r} leaves no time at all: it must be above 0")
    return duration_s


def duration_or_off(text: str) -> float | None:
    """Seconds, None for `off`."""
    return None if text.strip().lower() == "off" else parse_duration(text)


def target(text: str) -> float | None:
    """Seconds, above 0, None where no target is set."""
    return timeout(text) if text.strip() else None


def body_bytes(text: str) -> int:
    """Bytes, at least 1."""
    size_bytes = parse_bytes(text)
    if size_bytes < 1:
        raise ValueError(f"{text!r} would let no body through: it must be above 0")
    return size_bytes


def whole_number(*, at_least: int) -> Callable[[str], int]:
    """A reader of whole numbers from `at_least` on."""

    def read(text: str) -> int:
        digits = text.strip()
        if not digits.isascii() or not digits.isdigit() or len(digits) > 15 or int(digits) < at_least:
            raise ValueError(f"{text!r} is not a whole number of at least {at_least}")
        return int(digits)

    return read


def number_or(word: str) -> Callable[[str], int | None]:
    """A reader of whole numbers from 1 on, or of a word that stands for None."""

    def read(text: str) -> int | None:
        if text.strip().lower() == word:
            return None
        try:
            return whole_number(at_least=1)(text)
        except ValueError:
            raise ValueError(f"{text!r} is neither a whole number of at least 1 nor {word}") from None

    return read


def per_backend(read: Callable[[str], T], fallback: T) -> Callable[[str], PerBackend[T]]:
    """A reader of one value or `name=value,...`, each read by `read`."""
    return lambda text: parse_per_backend(text, read, fallback)


def one_of(*choices: str) -> Callable[[str], str]:
    """A reader of one of a few words, in whatever case."""

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return word

    return read


def port(text: str) -> int:
    """A TCP port, 0 for a free one."""
    digits = text.strip()
    if not digits.isascii() or not digits.isdigit() or int(digits) > 65535:
        raise ValueError(f"{text!r} is not a port: it is a number from 0 to 65535")
    return int(digits)


def port_or_off(text: str) -> int | None:
    """A TCP port, or None for `off`."""
    if text.strip().lower() == "off":
        return None
    try:
        return port(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a port: it is a number from 0 to 65535, or off") from None


def host(text: str) -> str:
    """A host name or an IP address to listen on, without a port."""
    name = text.strip()
    bare = name.removeprefix("[").removesuffix("]")
    if not bare or "/" in bare or any(character.isspace() for character in bare) or bare.count(":") == 1:
        raise ValueError(f"{text!r} is not an address to listen on: write a host name or an IP address, without a port")
    return bare


def engine(text: str) -> str:
    """The software behind a backend, `auto` to find out."""
    return one_of("auto", "vllm", "sglang", "dynamo", "llama_cpp", "tgi", "transformers", "static")(text)


def card_bytes(text: str) -> int:
    """Bytes of a card's memory; a bare number is almost surely a number of GiB, and is not guessed at."""
    size_bytes = parse_bytes(text)
    if size_bytes < _LEAST_CARD_BYTES:
        raise ValueError(f"{text!r} is {size_bytes} bytes, which no card's memory is counted in: write its unit, like 24GiB")
    return size_bytes


def kv_dtype(text: str) -> str:
    """A KV dtype by its name, in lower case; `auto` for the engine's own choice."""
    word = text.strip().lower()
    if word != AUTO:
        known_dtype(word)
    return word


def stages(text: str) -> str:
    """Pipeline stages: how many, or the layers of each, with plus signs."""
    parts = text.strip().split("+")
    if not all(part.strip().isascii() and part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is neither a number of stages nor the layers of each, like 16+32")
    return "+".join(str(int(part)) for part in parts)


def model_files(text: str) -> Path | None:
    """A model's config file, or a folder that has one."""
    path = Path(text.strip())
    return path if _is_folder(path) and readable_file(str(path / "config.json")) else readable_file(text)


def tokenizer_files(text: str) -> Path | None:
    """A tokenizer.json, or a folder that has one."""
    path = Path(text.strip())
    return path if _is_folder(path) and readable_file(str(path / "tokenizer.json")) else readable_file(text)


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """The most tokens that one part of a prompt takes which is no text, by its kind."""

    by_kind: Mapping[MediaKind, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(f"{kind.value}:{tokens}" for kind, tokens in self.by_kind.items())


def media_tokens(text: str) -> MediaTokens:
    """`1500` for a part of any kind, or `image:1500 audio:750 ...`."""
    kinds = [kind for kind in MediaKind if kind is not MediaKind.OTHER]
    by_kind: dict[MediaKind, int] = {}
    for word in text.split():
        name, colon, number = word.rpartition(":")
        named = [kind for kind in kinds if kind.value == name.lower()] if colon else kinds
        if not named:
            raise ValueError(f"{word!r} names no kind of media: {', '.join(kind.value for kind in kinds)}")
        by_kind |= dict.fromkeys(named, whole_number(at_least=0)(number))
    return MediaTokens(by_kind)


def policy(text: str) -> str:
    """The order of tickets within a line."""
    return one_of(*POLICIES)(text)


def default_output(text: str) -> int | str:
    """`context`, `require`, or a number of tokens."""
    word = text.strip().lower()
    if word in ("context", "require"):
        return word
    try:
        return whole_number(at_least=1)(word)
    except ValueError:
        raise ValueError(f"{text!r} is neither context nor require nor a number of tokens") from None


def share(text: str) -> float:
    """A part of the whole, above 0 and at most 1; `50%` is 0.5."""
    number = text.strip()
    try:
        part = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        part = math.nan
    if not 0 < part <= 1:
        raise ValueError(f"{text!r} is not a share: it is a number above 0 and at most 1")
    return part


def workers(text: str) -> int:
    """1: each process would plan with the whole budget, so that two would over-admit."""
    number = whole_number(at_least=1)(text)
    if number > 1:
        raise ValueError(
            f"{number} is refused: every process would hand out the whole budget by itself. Run one; for replicas that "
            "do not know of each other give each its part with KVGATE_SHARE"
        )
    return number


def secret(text: str) -> SecretStr | None:
    """A secret that a header can carry, None if it is empty."""
    value = text.strip()
    if not (value.isascii() and value.isprintable()):
        raise ValueError("it holds characters that no HTTP header can carry (the value is not shown)")
    return SecretStr(value) if value else None


def readable_file(text: str) -> Path | None:
    """A file that can be read now, None if none is named."""
    if not text.strip():
        return None
    path = Path(text.strip())
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise ValueError(f"{text!r} cannot be read: {error.strerror or error}") from None


def written_file(text: str) -> Path | None:
    """A file that will be written, in a folder that is there; None for `off`."""
    if text.strip().lower() in ("", "off"):
        return None
    path = Path(text.strip())
    try:
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    except OSError as error:  # a name that is too long
        raise ValueError(f"{text!r} cannot be written: {error.strerror or error}") from None
    if is_folder or not has_folder:
        raise ValueError(f"{text!r} cannot be written: it names a folder, or its folder is not there")
    return path


def _is_folder(path: Path) -> bool:
    """Whether there is such a folder; what cannot even be looked up, as a name that is too long, is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def certificate_file(text: str) -> Path | None:
    """A PEM file with certificates, None if none is named."""
    path = readable_file(text)
    if path is not None:
        try:
            ssl.create_default_context(cafile=str(path))
        except (ssl.SSLError, ValueError):
            raise ValueError(f"{text!r} holds no certificate in PEM form") from None
    return path


def page_url(text: str) -> str:
    """The http or https URL of one page; a credential in it would be shown, so there is none."""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment or "@" in parts.netloc:
        shown = text.rpartition("@")[2]
        raise ValueError(f"{shown!r} is not the URL of a page: it looks like http://host:9090/metrics, with no user in it")
    return text


def paths(text: str) -> tuple[str, ...]:
    """Paths of routes, comma-separated, each once."""
    listed = tuple(dict.fromkeys(path.strip() for path in text.split(",") if path.strip()))
    for path in listed:
        if not path.startswith("/") or any(character in path for character in "?#* "):
            raise ValueError(f"{path!r} is not the path of a route: it begins with / and has no query and no wildcard")
    return listed


def show(value: object) -> str:
    """The text of a value, such that reading it gives the value again; a secret is a mask. Units are the caller's part."""
    match value:
        case None:
            return ""
        case SecretStr():
            return MASK
        case PerBackend(fallback, by_name):
            named = [f"{name}={show(part)}" for name, part in by_name.items()]
            return ",".join([show(fallback)] * (fallback is not None) + named)
        case tuple():
            return ",".join(show(part) for part in value)
        case BackendAddress() | str() | int() | Path():
            return str(value)
        case float():
            return f"{value:.12g}"
        case _:
            return str(value)
