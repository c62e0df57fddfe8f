"""Which names a setting may have: those that Kubernetes makes, and the nearest right one of what is none."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "KVGATE_"

# Memory of the host, under the names that engines give it. It is no KV budget, whoever means it well.
_HOST_MEMORY: Final = re.compile(r"KVGATE_(\w*(SWAP|OFFLOAD|HOST_MEMORY|HOST_RAM|CPU_MEMORY|CPU_RAM)\w*|RAM)")

# What Kubernetes sets in every pod for a Service called kvgate or kvgate-something, unless enableServiceLinks is false.
_SERVICE_LINK: Final = re.compile(
    r"KVGATE(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://[^/]+:\d+")


def is_service_link(name: str, value: object) -> bool:
    """Whether Kubernetes, and no operator, has set this variable."""
    if _SERVICE_LINK.fullmatch(name):
        return True
    return name.endswith("_PORT") and isinstance(value, str) and _SERVICE_ADDRESS.fullmatch(value) is not None


def name_problems(environment: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """One line for every KVGATE_ variable that is set and is none of `known`, in order of their names."""
    names = tuple(known)
    problems = []
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX) or name in names or not environment[name]:
            continue
        if is_service_link(name, environment[name]):
            continue
        if _HOST_MEMORY.fullmatch(name.upper()):
            problems.append(
                f"{name} is not a setting: memory of the host is no KV budget. An engine computes on what lies on the card, and"
                " what it moves away must come back first: that hides a shortage of blocks for a while and makes none"
            )
            continue
        nearest = difflib.get_close_matches(name.upper(), names, n=1, cutoff=0.0)
        problems.append(f"{name} is not a setting; the nearest is {nearest[0]}")
    return problems
