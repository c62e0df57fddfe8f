"""Loading the settings: every problem found, told together, before anything starts; and the list of what holds and why."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from gateway.backend_settings import PerBackend, read_backend_keys
from gateway.core.geometry.model_config import read_model
from gateway.core.geometry.plan import choose_dtype, parse_stages
from gateway.core.names import BackendName
from gateway.core.reserve import ReserveProblem, ReserveUnit
from gateway.keys_file import read_keys_file
from gateway.lanes_file import read_lanes
from gateway.model_files import read_model_files
from gateway.setting_names import is_service_link, name_problems
from gateway.setting_values import show
from gateway.settings import Settings
from gateway.units import show_bytes, show_duration

FLAGS: Final[Mapping[str, str]] = {
    "KVGATE_BACKENDS": "--backends",
    "KVGATE_PORT": "--port",
    "KVGATE_ADMIN_PORT": "--admin-port",
    "KVGATE_KV_BLOCKS": "--kv-blocks",
    "KVGATE_BLOCK_TOKENS": "--block-tokens",
    "KVGATE_MAX_CONTEXT": "--max-context",
    "KVGATE_SEATS": "--seats",
    "KVGATE_QUEUE_TIMEOUT": "--patience",
}


# Settings whose None has a word of its own.
_WORDS: Final[Mapping[str, str]] = {
    "admin_port": "off",
    "state_file": "off",
    "early_commit_s": "off",
    "max_connections": "auto",
    "max_connections_per_address": "off",
}


class SettingsError(Exception):
    """Settings that cannot be right. problems: one line each, fit for the operator, without secrets."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as `kvgate settings` shows it.

    default, value: texts that could be set (a secret's is a mask). origin: default, environment or flag.
    """

    name: str
    default: str
    value: str
    origin: str
    meaning: str


def load_settings(flags: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process: flags (variable's name -> text) before environment before default.

    Raises SettingsError with everything that is wrong, unless it can only be seen once the rest is right.
    """
    given: dict[str, Any] = dict(flags or {})
    problems = name_problems(os.environ, _fields())
    try:
        settings = Settings(**given)
    except ValidationError as error:
        for detail in error.errors(include_input=False, include_url=False):
            variable = str(detail["loc"][0])
            reason = detail.get("ctx", {}).get("error", detail["msg"])
            problems.append(f"{FLAGS.get(variable, variable) if variable in given else variable}: {reason}")
        raise SettingsError(tuple(problems)) from None
    problems += _contradictions(settings)
    if problems:
        raise SettingsError(tuple(problems))
    return settings


def describe(settings: Settings, flags: Mapping[str, str] | None = None) -> tuple[SettingRow, ...]:
    """Every setting in the order of the documents. `flags` are those that `settings` was loaded with."""
    rows = []
    for variable, (name, field) in _fields().items():
        text = os.environ.get(variable, "")
        if variable in (flags or {}):
            origin = "flag"
        elif text and not is_service_link(variable, text):
            origin = "environment"
        else:
            origin = "default"
        rows.append(
            SettingRow(variable, str(field.default), _shown(name, getattr(settings, name)), origin, field.description or "")
        )
    return tuple(rows)


def _fields() -> dict[str, tuple[str, FieldInfo]]:
    """Variable -> the attribute of Settings that it feeds."""
    return {str(field.validation_alias): (name, field) for name, field in Settings.model_fields.items()}


def _shown(name: str, value: object) -> str:
    if value is None and name in _WORDS:
        return _WORDS[name]
    if isinstance(value, float) and name.endswith("_s"):
        return show_duration(value)
    if isinstance(value, int) and name.endswith("_bytes"):
        return show_bytes(value)
    return show(value)


def _contradictions(settings: Settings) -> list[str]:
    """What each for itself is right and cannot be true together."""
    return [
        *_unknown_backends(settings),
        *_reserves_beyond_budget(settings),
        *_shared_port(settings),
        *_unusable_keys(settings),
        *_unusable_callers(settings),
        *_unusable_models(settings),
        *_tokenizer_without_extra(settings),
        *_unusable_lanes(settings),
    ]


def _unknown_backends(settings: Settings) -> list[str]:
    names = [address.name for address in settings.backends]
    return [
        f"{variable} names {unknown!r}, and no backend has that name ({', '.join(names) or 'none is set'})"
        for variable, (name, _) in _fields().items()
        if isinstance(value := getattr(settings, name), PerBackend)
        for unknown in value.by_name
        if unknown not in names
    ]


def _reserves_beyond_budget(settings: Settings) -> list[str]:
    """Only where both are told in numbers; a budget that must be discovered is compared once it is known."""
    problems = []
    for address in settings.backends:
        budget_blocks = settings.kv_blocks.of(address.name)
        if budget_blocks is None:
            continue
        resolved = settings.reserve.of(address.name).resolve(budget_blocks)
        # Memory cannot be compared with blocks before the engine has told the size of a block.
        if isinstance(resolved, ReserveProblem) and settings.reserve.of(address.name).unit is not ReserveUnit.BYTES:
            problems.append(f"{resolved.message} (KVGATE_KV_BLOCKS of the backend {address.name!r})")
    return problems


def _unusable_lanes(settings: Settings) -> list[str]:
    if settings.lanes_file is None:
        return []
    try:
        read_lanes(settings.lanes_file)
    except (OSError, ValueError) as error:
        return [f"KVGATE_LANES: {error}"]
    return []


def _unusable_models(settings: Settings) -> list[str]:
    """A config that is not understood ends the start: whoever gives one counts on exact weighing."""
    problems: list[str] = []
    for address in settings.backends:
        path, name = settings.model_config_path.of(address.name), address.name
        memory, weights = settings.memory.of(name), settings.weights.of(name)
        if path is None:
            if memory is not None:
                problems.append(
                    f"KVGATE_MEMORY of the backend {name!r} needs KVGATE_MODEL_CONFIG: memory is not blocks without the model"
                )
            continue
        try:
            files = read_model_files(path)
            model = read_model(files.config, quant_config=files.quant_config)
            parse_stages(settings.pp.of(name), len(model.layers))
            choose_dtype(model, settings.kv_dtype.of(name))
        except ValueError as error:
            problems.append(f"KVGATE_MODEL_CONFIG of the backend {name!r}: {error}")
            continue
        if model.is_encoder_decoder:
            problems.append(f"KVGATE_MODEL_CONFIG of the backend {name!r}: an encoder-decoder model can be planned, not served")
        if memory is not None and weights is None and files.weights_bytes is None:
            problems.append(
                f"KVGATE_MEMORY of the backend {name!r} needs KVGATE_WEIGHTS: no index of weights lies beside {files.path}"
            )
    return list(dict.fromkeys(problems))


def _tokenizer_without_extra(settings: Settings) -> list[str]:
    if all(settings.tokenizer.of(address.name) is None for address in settings.backends):
        return []
    missing = [name for name in ("tokenizers", "jinja2") if importlib.util.find_spec(name) is None]
    if not missing:
        return []
    return [f"KVGATE_TOKENIZER needs the extra tokenizer (pip install 'kvgate[tokenizer]'): no {' and no '.join(missing)} here"]


def _is_everywhere(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _shared_port(settings: Settings) -> list[str]:
    hosts = {settings.host, settings.admin_host}
    if settings.port == 0 or settings.port != settings.admin_port:
        return []
    if len(hosts) == 2 and not any(map(_is_everywhere, hosts)):
        return []
    return [f"KVGATE_PORT and KVGATE_ADMIN_PORT are both {settings.port}: give one of them another port, or 0 for a free one"]


def _unusable_callers(settings: Settings) -> list[str]:
    if settings.keys_file is None:
        return []
    try:
        read_keys_file(settings.keys_file)
    except (OSError, ValueError) as error:
        return [f"KVGATE_KEYS_FILE: {error}"]
    return []


def _unusable_keys(settings: Settings) -> list[str]:
    if settings.backend_keys_file is None:
        return []
    try:
        keys = read_backend_keys(settings.backend_keys_file)
    except (OSError, ValueError) as error:
        return [f"KVGATE_BACKEND_KEYS_FILE: {error}"]
    known: set[BackendName] = {address.name for address in settings.backends}
    strangers = [name for name in keys if name not in known]
    return [f"KVGATE_BACKEND_KEYS_FILE has a key for {name!r}, and no backend has that name" for name in strangers]
