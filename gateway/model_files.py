"""The files of a model that say what it keeps: config.json, and beside it the quantiser's and the index of its weights.

Nothing is loaded but small JSON files. NaN and Infinity, which released configs hold in places that nobody needs, are read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_MOST_BYTES: Final = 64 * 2**20
_INDEX: Final = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """config: the parsed config.json. quant_config: hf_quant_config.json, None if there is none.

    weights_bytes: of all weights together, as their files say, None where none is there. path: the config's. processor:
    preprocessor_config.json, which says what becomes of images and sounds, None if there is none.
    """

    path: Path
    config: Mapping[str, Any]
    quant_config: Mapping[str, Any] | None = None
    weights_bytes: int | None = None
    processor: Mapping[str, Any] | None = None


def read_model_files(path: Path) -> ModelFiles:
    """The files of a model, from its folder or its config file.

    Raises ValueError with a sentence that names the file.
    """
    config_path = path / "config.json" if path.is_dir() else path
    folder = config_path.parent
    quant_path = folder / "hf_quant_config.json"
    # A file of another name stands for itself: what lies beside it belongs to others.
    is_in_folder = config_path.name == "config.json"
    return ModelFiles(
        path=config_path,
        config=_read_object(config_path),
        quant_config=_read_object(quant_path) if is_in_folder and quant_path.is_file() else None,
        weights_bytes=_weights_bytes(folder) if is_in_folder else None,
        processor=_processor(folder) if is_in_folder else None,
    )


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path} is too large to be a config")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError(f"{path} is no JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no JSON object")
    return content


def _processor(folder: Path) -> Mapping[str, Any] | None:
    """Under its own name, or inside the file of the whole processor."""
    alone, whole = folder / "preprocessor_config.json", folder / "processor_config.json"
    if alone.is_file():
        return _read_object(alone)
    inside = _read_object(whole).get("image_processor") if whole.is_file() else None
    return inside if isinstance(inside, dict) else None


def _weights_bytes(folder: Path) -> int | None:
    """What the index says, else the size of the one file that needs no index."""
    index = folder / _INDEX
    if index.is_file():
        metadata = _read_object(index).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        return int(total) if isinstance(total, int | float) and not isinstance(total, bool) and total > 0 else None
    alone = folder / "model.safetensors"
    return alone.stat().st_size if alone.is_file() else None
