"""How an operator names backends, and says something of one of them only. Text in, values out; nothing is contacted here."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit, urlunsplit

from pydantic import SecretStr

from gateway.core.names import BackendName

T = TypeVar("T")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """One upstream endpoint as it was given: its name, its URL without user info, and whether there was any to cut.

    Where no name was given it is the URL's host, port and path. A trailing `/v1` is still part of the URL.
    """

    name: BackendName
    url: str
    user_info_cut: bool = False

    def __str__(self) -> str:
        return f"{self.name}={self.url}" if _NAME.fullmatch(self.name) else self.url


@dataclass(frozen=True, slots=True)
class PerBackend(Generic[T]):
    """A setting that may differ between backends: `value`, or `name=value,...`, or both (the plain one is for the rest)."""

    fallback: T
    by_name: Mapping[BackendName, T] = field(default_factory=dict)

    def of(self, name: BackendName) -> T:
        """What holds for the backend `name`."""
        return self.by_name.get(name, self.fallback)


def parse_addresses(text: str) -> tuple[BackendAddress, ...]:
    """The backends of `url` or `name=url`, comma-separated, in order.

    Raises ValueError, one line for each that cannot be right: no http or https URL, a query, a name or a URL given twice.
    No message repeats user info.
    """
    addresses: list[BackendAddress] = []
    problems: list[str] = []
    names: set[str] = set()
    endpoints: dict[tuple[str, str | None, int | None, str], str] = {}
    for number, item in enumerate(_items(text), start=1):
        try:
            address = _parse_address(item)
        except ValueError as error:
            problems.append(f"entry {number}: {error}")
            continue
        endpoint = _endpoint(urlsplit(address.url))
        if endpoint in endpoints:
            problems.append(f"{address.url} is given twice, as {endpoints[endpoint]!r} and as {address.name!r}")
        elif address.name in names:
            problems.append(f"two backends have the name {address.name!r}")
        endpoints.setdefault(endpoint, address.name)
        names.add(address.name)
        addresses.append(address)
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(addresses)


def parse_per_backend(text: str, parse: Callable[[str], T], fallback: T) -> PerBackend[T]:
    """One value for all, or `name=value,...`; where neither names a backend, `fallback` holds.

    Raises ValueError if an entry cannot be parsed, a name comes twice, or there are two values without a name.
    """
    by_name: dict[BackendName, T] = {}
    plain: list[T] = []
    for item in _items(text):
        name, equals, value = item.rpartition("=")
        if not equals:
            plain.append(parse(item))
        elif BackendName(name.strip()) in by_name:
            raise ValueError(f"there are two values for the backend {name.strip()!r}")
        else:
            by_name[BackendName(name.strip())] = parse(value.strip())
    if len(plain) > 1:
        raise ValueError(f"{text!r} has {len(plain)} values without a backend's name: write one value, or name=value,...")
    return PerBackend(plain[0] if plain else fallback, by_name)


def read_backend_keys(path: Path) -> dict[BackendName, SecretStr]:
    """The keys in a file of lines `name=key`; empty lines and lines that begin with # are skipped.

    Raises OSError, or ValueError that names the line by its number and never shows what is in it.
    """
    keys: dict[BackendName, SecretStr] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, _, key = (part.strip() for part in stripped.partition("="))
        if not name or not key or not (key.isascii() and key.isprintable()):
            raise ValueError(f"line {number} of {path} is not of the form name=key")
        if BackendName(name) in keys:
            raise ValueError(f"line {number} of {path} gives a second key for the same backend")
        keys[BackendName(name)] = SecretStr(key)
    return keys


def _items(text: str) -> Iterator[str]:
    return (item.strip() for item in text.split(",") if item.strip())


def _parse_address(item: str) -> BackendAddress:
    head, equals, tail = item.partition("=")
    given_name, url = (head.strip(), tail.strip()) if equals and "://" not in head else (None, item)
    if given_name is not None and _NAME.fullmatch(given_name) is None:
        raise ValueError(f"{given_name!r} cannot be a backend's name: letters, digits, dot, dash and underscore only")
    parts = _split_url(url)
    shown = url.rpartition("@")[2]  # even where the URL is so wrong that its user info is not seen as such
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"{shown!r} is not a backend's URL: it looks like http://host:8000")
    if parts.query or parts.fragment:
        raise ValueError(f"{shown!r}: a backend's URL has no query and no fragment")
    path = parts.path.rstrip("/")
    bare = SplitResult(parts.scheme, _without_user_info(parts.netloc), path, "", "")
    name = given_name or bare.netloc + path.removesuffix("/v1")
    return BackendAddress(BackendName(name), urlunsplit(bare), user_info_cut="@" in parts.netloc)


def _split_url(url: str) -> SplitResult:
    """The parts of `url`; ValueError in our words, for urlsplit's own repeats the URL with its password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("the host or the port of the URL cannot be read") from None
    return parts


def _without_user_info(netloc: str) -> str:
    return netloc.rpartition("@")[2]


def _endpoint(parts: SplitResult) -> tuple[str, str | None, int | None, str]:
    """What makes two URLs the same endpoint, however they are written."""
    path = parts.path.removesuffix("/v1")
    return (parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme), path)
