"""The keys file: which key belongs to which tenant, and what that tenant may have. Text in, one frozen table out.

    [tenants.team-a]
    keys = ["<sha256 of a key, in hex>", "..."]   # several, so that one can be replaced without a gap
    weight = 2.0               # its share beside the other tenants of a lane [1]
    cap_blocks = 4000          # KV blocks that it may hold at once [no cap]
    cap_requests = 32          # its requests at once, running and waiting [no cap]
    queue_share = 0.25         # part of a lane's places in line that it may take [1]
    lanes = ["batch"]          # the lanes that it may use, the first where nothing else decides [those open to all]
    priority = 0               # of its requests; the lower number goes first, as in vLLM [0]
    may_set_priority = false   # whether its requests may give themselves a better one [false]

    [anonymous]               # optional: terms of callers without a key; without this table they are answered 401

The file holds no key, only digests: whoever reads it cannot call. A digest is looked up in a table, which takes the same
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

from gateway.core.names import ANONYMOUS, TenantName
from gateway.core.tenant import ANONYMOUS_TERMS, TenantTerms

MOST_BYTES: Final = 4 << 20
MOST_PRIORITY: Final = 2**31 - 1

_NUMBER: Final = ((int, float), "a number")
_WHOLE: Final = ((int,), "a whole number")
_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "weight": _NUMBER,
    "cap_blocks": _WHOLE,
    "cap_requests": _WHOLE,
    "queue_share": _NUMBER,
    "lanes": ((list,), "a list of lanes' names"),
    "priority": _WHOLE,
    "may_set_priority": ((bool,), "true or false"),
}

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Keys:
    """The table. anonymous: who brings no key; None: nobody may come without. by_digest: SHA-256 of the key's bytes."""

    by_digest: Mapping[bytes, TenantTerms] = field(default_factory=dict)
    anonymous: TenantTerms | None = ANONYMOUS_TERMS
    tenants: int = 0

    def find(self, key: bytes) -> TenantTerms | None:
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
    by_digest: dict[bytes, TenantTerms] = {}
    for name, given in tenants.items():
        where = f"tenants.{name if name.isprintable() else ascii(name)}"
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{where}: a tenant's name has letters, digits, dot, dash and underscore only, at most 64")
        if name == ANONYMOUS:
            raise ValueError(f"{where}: who has no key is in the table [anonymous]")
        terms = _table(given, where)
        held = _terms(TenantName(name), terms, where)
        for number, digest in enumerate(_digests(terms, where), start=1):
            if digest in by_digest:
                raise ValueError(f"{where}: key {number} stands twice in the file")
            by_digest[digest] = held
    anonymous = None
    if "anonymous" in document:
        anonymous = _terms(ANONYMOUS, _table(document["anonymous"], "anonymous"), "anonymous")
    if not by_digest and anonymous is None:
        raise ValueError("it names no key and no [anonymous]: nobody could call")
    return Keys(by_digest, anonymous, len(tenants))


def _terms(tenant: TenantName, given: Mapping[str, Any], where: str) -> TenantTerms:
    members = {name: value for name, value in given.items() if name != "keys"}
    _known(given, {*_KINDS, "keys"} if tenant != ANONYMOUS else {*_KINDS}, where)
    for name, value in members.items():
        kinds, words = _KINDS[name]
        # `true` is a number to Python, and to nobody who writes a file.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"{where}: {name} is {words}")
    if abs(members.get("priority", 0)) > MOST_PRIORITY:
        raise ValueError(f"{where}: priority is a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}")
    if "lanes" in members:
        if not all(isinstance(lane, str) and _NAME.fullmatch(lane) for lane in members["lanes"]):
            raise ValueError(f"{where}: lanes is a list of lanes' names")
        members["lanes"] = tuple(members["lanes"])
    return TenantTerms(tenant, **members)


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
