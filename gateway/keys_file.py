"""The keys file: which key belongs to which tenant, and what that tenant may have. Text in, one frozen table out.

    [tenants.team-a]
    keys = ["<sha256 of a key, in hex>", "..."]   # several, so that one can be replaced without a gap
    weight = 2.0              # its share beside other tenants of a lane [1]
    priority = 0              # what its requests have [0]; higher goes first
    max_priority = 5          # the most that its requests may give themselves [priority]
    lanes = ["standard"]      # lanes that its requests may choose by header [none]
    max_blocks = 4000         # KV blocks that it may be charged at once, of all its requests [no limit]
    max_requests = 32         # requests that it may run at once [no limit]
    queue_share = 0.25        # part of a line's places that it may take [1]

    [anonymous]               # optional: terms of callers without a key; without this table they are answered 401

The file holds no key, only digests: whoever reads it can not call. A digest is looked up in a table, which takes the same
time whatever is near: how long it takes tells at most something of digests, and nobody can make a key for a digest. That
holds for keys that a machine made, of 128 bits and more; a word that people choose can be found by trying.
"""

import difflib
import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.core.names import ANONYMOUS, LaneName, TenantName

MOST_BYTES: Final = 8 << 20
MOST_PRIORITY: Final = 1_000_000

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a request is from, and what it may ask for.

    priority: what its requests have; higher goes first. max_priority: the most that they may give themselves; less they
    always may. lanes: those that they may choose.
    """

    tenant: TenantName = ANONYMOUS
    priority: int = 0
    max_priority: int = 0
    lanes: frozenset[LaneName] = frozenset()


@dataclass(frozen=True, slots=True)
class Keys:
    """The table. anonymous: who brings no key; None: nobody may come without. by_digest: SHA-256 of the key's bytes."""

    by_digest: Mapping[bytes, Identity] = field(default_factory=dict)
    anonymous: Identity | None = field(default_factory=Identity)
    tenants: int = 0

    def find(self, key: bytes) -> Identity | None:
        return self.by_digest.get(hashlib.sha256(key).digest())


def read_keys_file(path: Path) -> Keys:
    """The keys in a file. Raises OSError, or ValueError in one line that names the place and shows no key."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES} bytes")
    try:
        document = tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # Its message ends in the place, and begins with what may be a part of the line.
        place = re.search(r"\(at [^()]*\)$", str(error))
        raise ValueError(f"{path} is not TOML {place.group() if place else ''}".rstrip()) from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    try:
        return _read(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(document: Mapping[str, Any]) -> Keys:
    _known(document, {"tenants", "anonymous"}, "the file")
    tenants = _table(document.get("tenants", {}), "tenants")
    by_digest: dict[bytes, Identity] = {}
    for name, given in tenants.items():
        where = f"tenants.{name if name.isprintable() else ascii(name)}"
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{where}: a tenant's name has letters, digits, dot, dash and underscore only, at most 64")
        if name == ANONYMOUS:
            raise ValueError(f"{where}: who has no key is in the table [anonymous]")
        terms = _table(given, where)
        identity = _identity(TenantName(name), terms, where, has_keys=True)
        for number, digest in enumerate(_digests(terms, where), start=1):
            if digest in by_digest:
                raise ValueError(f"{where}: key {number} stands twice in the file")
            by_digest[digest] = identity
    anonymous = None
    if "anonymous" in document:
        anonymous = _identity(ANONYMOUS, _table(document["anonymous"], "anonymous"), "anonymous", has_keys=False)
    if not by_digest and anonymous is None:
        raise ValueError("it names no key and no [anonymous]: nobody could call")
    return Keys(by_digest, anonymous, len(tenants))


def _identity(tenant: TenantName, terms: Mapping[str, Any], where: str, *, has_keys: bool) -> Identity:
    _known(terms, {"priority", "max_priority", "lanes"} | ({"keys"} if has_keys else set()), where)
    priority = _whole(terms, "priority", where, 0, -MOST_PRIORITY, MOST_PRIORITY)
    return Identity(
        tenant,
        priority,
        _whole(terms, "max_priority", where, priority, priority, MOST_PRIORITY),
        frozenset(_lanes(terms, where)),
    )


def _digests(terms: Mapping[str, Any], where: str) -> list[bytes]:
    given = terms.get("keys")
    if not isinstance(given, list) or not given:
        raise ValueError(f"{where}: keys is a list of at least one SHA-256 in hex")
    for number, text in enumerate(given, start=1):
        if not isinstance(text, str) or _DIGEST.fullmatch(text) is None:
            raise ValueError(
                f"{where}: key {number} is no SHA-256 in hex (64 digits); make one with: printf %s KEY | sha256sum"
            )
    return [bytes.fromhex(text) for text in given]


def _lanes(terms: Mapping[str, Any], where: str) -> list[LaneName]:
    given = terms.get("lanes", [])
    if not isinstance(given, list) or not all(isinstance(lane, str) and _NAME.fullmatch(lane) for lane in given):
        raise ValueError(f"{where}: lanes is a list of lanes' names")
    return [LaneName(lane) for lane in given]


def _whole(terms: Mapping[str, Any], name: str, where: str, default: int, least: int, most: int) -> int:
    value = terms.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{where}: {name} is a whole number from {least} to {most}")
    return value


def _table(given: object, where: str) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{where} is not a table")
    return given


def _known(table: Mapping[str, Any], names: set[str], where: str) -> None:
    """A misspelt limit would be no limit: what is not known is refused."""
    for name in table:
        if name not in names:
            # A slip of the pen is shown; what is far from every name could be a key in the wrong place.
            shown = repr(name) if difflib.get_close_matches(name, names, n=1) else "one member"
            raise ValueError(f"{where}: {shown} is not known here; known are {', '.join(sorted(names))}")
