"""MediaCosts: how many tokens an image or a sound can be at most, by model family, where that can be bounded.

The figures come from the model's own config.json and preprocessor_config.json, by the formulas of the families' processors in
transformers 5.19 and of vLLM 0.32's models (both read; the sources stand beside each family). A family that is not in the
table, a size that its files do not tell, a film or a document: no bound, and the request is weighed as a whole context.
What the operator gives (KVGATE_MEDIA_TOKENS) comes before all of it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gateway.core.request import MediaKind, MediaPart

# Marks and words that a template puts around a part: `Picture 1: <|vision_start|>...<|vision_end|>`, line ends.
FRAME_TOKENS: Final = 16
# No processor takes a larger side or more tiles; such figures are garbage.
_MOST: Final = 1 << 16
# Qwen's processor refuses a longer strip.
_MOST_RATIO: Final = 200

Config = Mapping[str, Any]


class ImageCost(Protocol):
    def tokens(self, width: int | None, height: int | None) -> int:
        """The most that an image of that size (pixels) becomes; None: of any size."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same for every image, or for the largest number of tiles that it is cut into."""

    most: int

    def tokens(self, width: int | None, height: int | None) -> int:
        return self.most


@dataclass(frozen=True, slots=True)
class Resized:
    """One token for each cell, after the image was brought between two numbers of pixels (Qwen's smart_resize)."""

    cell: int
    least_pixels: int
    most_pixels: int

    def tokens(self, width: int | None, height: int | None) -> int:
        if width is None or height is None:
            return self._most_of_any()
        rows, columns = round(height / self.cell), round(width / self.cell)
        if rows * columns * self.cell**2 > self.most_pixels:
            # Both sides are rounded down, but to one cell at least: a long strip keeps its length in cells.
            return min(rows * columns, max(self.most_pixels // self.cell**2, self._longest(self.most_pixels, width, height)))
        if rows * columns * self.cell**2 < self.least_pixels:
            beta = math.sqrt(self.least_pixels / (height * width))
            return math.ceil(height * beta / self.cell) * math.ceil(width * beta / self.cell)
        return rows * columns

    def _longest(self, pixels: int, width: int, height: int) -> int:
        """Cells of the longer side of an image of so many pixels and these proportions."""
        return math.ceil(math.sqrt(pixels * max(width, height) / min(width, height)) / self.cell)

    def _most_of_any(self) -> int:
        grown = self.least_pixels // self.cell**2 + 2 * self._longest(self.least_pixels, _MOST_RATIO, 1) + 1
        return max(self.most_pixels // self.cell**2, self._longest(self.most_pixels, _MOST_RATIO, 1), grown)


@dataclass(frozen=True, slots=True)
class Rows:
    """One token for each cell and one more at the end of each row, after the longer side was cut to a length (Pixtral)."""

    cell: int
    longest_edge: int

    def tokens(self, width: int | None, height: int | None) -> int:
        if width is None or height is None:
            width = height = self.longest_edge
        ratio = max(width / self.longest_edge, height / self.longest_edge, 1.0)
        sides = [max(math.ceil(side / ratio / self.cell), 1) for side in (width, height)]
        # A picture may be turned before it is cut into rows.
        return sides[0] * sides[1] + max(sides)


@dataclass(frozen=True, slots=True)
class MediaCosts:
    """What the parts of a prompt cost with one model. given: tokens of any part of a kind, by the operator."""

    family: str | None = None
    image: ImageCost | None = None
    audio_tokens: int | None = None
    given: Mapping[MediaKind, int] = field(default_factory=dict)

    def tokens(self, part: MediaPart) -> int | None:
        """The most that the part becomes, with what stands around it; None: not known."""
        if part.kind in self.given:
            return self.given[part.kind]
        match part.kind:
            case MediaKind.IMAGE if self.image is not None:
                return self.image.tokens(part.width, part.height) + FRAME_TOKENS
            case MediaKind.AUDIO if self.audio_tokens is not None:
                return self.audio_tokens + FRAME_TOKENS
            case _:
                return None

    def __str__(self) -> str:
        """For the operator: what is bounded, and by what."""
        said = [f"{kind.value} {tokens} tokens (KVGATE_MEDIA_TOKENS)" for kind, tokens in self.given.items()]
        if self.image is not None and MediaKind.IMAGE not in self.given:
            said.append(f"an image at most {self.image.tokens(None, None)} tokens ({self.family})")
        if self.audio_tokens is not None and MediaKind.AUDIO not in self.given:
            said.append(f"a sound at most {self.audio_tokens} tokens ({self.family})")
        return ", ".join(said)


NO_COSTS: Final = MediaCosts()


def read_costs(config: Config, processor: Config | None, given: Mapping[MediaKind, int]) -> MediaCosts:
    """What the files of a model tell. config: config.json. processor: preprocessor_config.json, None if there is none.

    Nothing is raised: files that do not tell what is needed give no bound.
    """
    family = config.get("model_type")
    read = _FAMILIES.get(family) if isinstance(family, str) else None
    costs = None
    if read is not None:
        try:
            costs = read(config, processor or {})
        except (KeyError, TypeError, ValueError, ArithmeticError):
            costs = None
    if costs is None:
        return MediaCosts(given=given)
    image, audio_tokens = costs
    return MediaCosts(str(family), image, audio_tokens, given)


_Costs = tuple[ImageCost | None, int | None]


def _number(value: Any) -> int:
    """A figure of a file. Raises TypeError, ValueError for what is none."""
    if isinstance(value, Mapping):
        value = value.get("height")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST**2:
        raise ValueError
    return math.ceil(value)


def _llava(config: Config, processor: Config) -> _Costs:
    """processing_llava.py: (height / patch)^2, and one more where the class token is kept."""
    vision = config["vision_config"]
    return Fixed((_number(vision["image_size"]) // _number(vision["patch_size"])) ** 2 + 1), None


def _gemma3(config: Config, processor: Config) -> _Costs:
    """processing_gemma3.py: a fixed number for each image; more where crops of it are added."""
    if processor.get("do_pan_and_scan"):
        raise ValueError
    return Fixed(_number(config["mm_tokens_per_image"])), None


def _gemma3n(config: Config, processor: Config) -> _Costs:
    """processing_gemma3n.py: a fixed number for each image and for each sound, which is cut at 30 s."""
    return Fixed(_number(config.get("vision_soft_tokens_per_image", 256))), _number(
        config["audio_config"].get("audio_soft_tokens_per_image", 188)
        if isinstance(config.get("audio_config"), Mapping)
        else config.get("audio_soft_tokens_per_image", 188)
    )


def _qwen_vl(config: Config, processor: Config) -> _Costs:
    """image_processing_qwen2_vl.py: smart_resize between two numbers of pixels, then patches merged two by two."""
    cell = _number(processor["patch_size"]) * _number(processor["merge_size"])
    given = processor.get("size")
    size: Config = given if isinstance(given, Mapping) else {}
    least = processor.get("min_pixels") or size.get("min_pixels") or size["shortest_edge"]
    most = processor.get("max_pixels") or size.get("max_pixels") or size["longest_edge"]
    return Resized(cell, _number(least), _number(most)), None


def _pixtral(config: Config, processor: Config) -> _Costs:
    """processing_pixtral.py: rows of patches, merged where the model does, each with a break at its end."""
    vision = config["vision_config"]
    size = processor.get("size")
    edge = size["longest_edge"] if isinstance(size, Mapping) and "longest_edge" in size else vision["image_size"]
    return Rows(_number(vision["patch_size"]) * _number(config.get("spatial_merge_size", 1)), _number(edge)), None


def _internvl(config: Config, processor: Config) -> _Costs:
    """processing_internvl.py, modeling_internvl_chat.py: tiles of a fixed number of tokens, and a thumbnail."""
    tiles = processor.get("max_patches", config.get("max_dynamic_patch"))
    if "image_seq_length" in config:
        tile_tokens = _number(config["image_seq_length"])
    else:
        vision = config["vision_config"]
        side = _number(config.get("force_image_size", vision["image_size"])) // _number(vision["patch_size"])
        tile_tokens = math.ceil(side**2 * float(config["downsample_ratio"]) ** 2)
    return Fixed((_number(tiles) + 1) * tile_tokens + 2), None


def _llama4(config: Config, processor: Config) -> _Costs:
    """processing_llama4.py: tiles with a separator each, the whole image once more, and marks around them."""
    vision = config["vision_config"]
    tile_tokens = math.ceil(
        (_number(vision["image_size"]) // _number(vision["patch_size"])) ** 2 * float(vision["pixel_shuffle_ratio"]) ** 2
    )
    tiles = _number(processor["max_patches"])
    return Fixed((tiles + 1) * tile_tokens + tiles + 4), None


def _qwen2_audio(config: Config, processor: Config) -> _Costs:
    """modeling_qwen2_audio.py: a window of 30 s is 3,000 frames, halved twice; what is longer is cut."""
    return None, 750


_FAMILIES: Final[Mapping[str, Callable[[Config, Config], _Costs]]] = {
    "llava": _llava,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "qwen2_vl": _qwen_vl,
    "qwen2_5_vl": _qwen_vl,
    "qwen3_vl": _qwen_vl,
    "qwen3_vl_moe": _qwen_vl,
    "pixtral": _pixtral,
    "mistral3": _pixtral,
    "internvl": _internvl,
    "internvl_chat": _internvl,
    "llama4": _llama4,
    "qwen2_audio": _qwen2_audio,
}
