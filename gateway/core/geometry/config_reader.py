"""ConfigReader: values out of a config.json, each of the kind it must be, and a memory of which keys were understood.

Nothing is coerced: text where a number belongs, a negative size, a True are refused with the key's name. What a reader did
not look at is known in the end, so that a sign of a structure that nobody here understands cannot pass unseen.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.core.geometry.rounding import is_whole

OTHER_WAY: Final = (
    "describe its groups yourself (kvgate_groups in the config file), or leave the config away and give KVGATE_KV_BLOCKS"
)


class ConfigRefused(ValueError):
    """The config cannot be weighed with. One sentence for the operator: which key, what is wrong, what to set instead."""

    def __init__(self, key: str, problem: str, cure: str = OTHER_WAY) -> None:
        super().__init__(f"{key}: {problem}; {cure}")
        self.key = key


class ConfigReader:
    """One object of a config, with the class defaults that hold where it is silent.

    path: where it stands in the file, for messages. defaults: key -> value that the model's class has.
    """

    def __init__(self, values: Mapping[str, Any], *, path: str = "", defaults: Mapping[str, Any] | None = None) -> None:
        self._values = values
        self._path = path
        self._defaults = dict(defaults or {})
        self._understood: set[str] = set()
        self.defaulted: dict[str, Any] = {}

    def name(self, key: str) -> str:
        """The key as an operator finds it in the file."""
        return f"{self._path}{key}"

    def refuse(self, key: str, problem: str, cure: str = OTHER_WAY) -> ConfigRefused:
        return ConfigRefused(self.name(key), problem, cure)

    def names(self) -> tuple[str, ...]:
        """Every key of the object."""
        return tuple(self._values)

    def has(self, *keys: str) -> bool:
        """Whether the file itself says something under one of these keys."""
        return any(self._values.get(key) is not None for key in keys)

    def get(self, key: str) -> Any:
        """What is there, else the class default, else None."""
        self._understood.add(key)
        value = self._values.get(key)
        if value is None and self._defaults.get(key) is not None:
            value = self._defaults[key]
            self.defaulted[key] = value
        return value

    def whole(self, *keys: str, at_least: int = 1) -> int | None:
        """The first of these keys that is there, as a whole number; None if none is. Raises ConfigRefused."""
        for key in keys:
            value = self.get(key)
            if value is None:
                continue
            if not is_whole(value, at_least=at_least):
                raise self.refuse(key, f"{value!r} is no whole number from {at_least} on", "correct the config")
            return int(value)
        return None

    def size(self, *keys: str) -> int:
        """As `whole`, but it must be there."""
        found = self.whole(*keys)
        if found is None:
            raise self.refuse(keys[0], "is not in the config, and nothing safe can be put in its place", "add it to the config")
        return found

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, f"{value!r} is neither true nor false", "correct the config")
        return value

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.refuse(key, f"{value!r} is no text", "correct the config")
        return value

    def items(self, key: str, *, length: int | None = None) -> tuple[Any, ...] | None:
        """A list; None if it is not there. length: what it must be."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not value:
            raise self.refuse(key, "is no list, or an empty one", "correct the config")
        if length is not None and len(value) != length:
            raise self.refuse(key, f"has {len(value)} entries for {length} layers", "correct the config")
        return tuple(value)

    def wholes(self, key: str, *, length: int | None = None, at_least: int = 0) -> tuple[int, ...] | None:
        """A list of whole numbers."""
        found = self.items(key, length=length)
        for value in found or ():
            if not is_whole(value, at_least=at_least):
                raise self.refuse(key, f"{value!r} in it is no whole number from {at_least} on", "correct the config")
        return found

    def section(self, key: str, *, defaults: Mapping[str, Any] | None = None) -> "ConfigReader | None":
        """An object inside; None if it is not there."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(key, "is no object", "correct the config")
        return ConfigReader(value, path=f"{self._path}{key}.", defaults=defaults)

    def understand(self, *keys: str) -> None:
        """These keys are known to change nothing that is kept."""
        self._understood.update(keys)

    def left_over(self) -> Iterator[tuple[str, Any]]:
        """Keys that say something and that nobody asked for."""
        for key, value in self._values.items():
            if key not in self._understood and value is not None and value is not False and value not in (0, "", [], {}):
                yield key, value
