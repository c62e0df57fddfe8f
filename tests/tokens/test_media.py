"""What images and sounds cost at most, held against what the families' own processors make of them."""

import pytest

from gateway.core.request import MediaKind, MediaPart, Prompt
from gateway.tokens.bound import CHAT_TOKENS, MESSAGE_TOKENS, prompt_bound
from gateway.tokens.media import FRAME_TOKENS, NO_COSTS, Fixed, MediaCosts, Resized, Rows, read_costs

IMAGE = MediaPart(MediaKind.IMAGE)

# Computed by transformers 5.19's smart_resize: (cell, least and most pixels), (width, height), tokens.
QWEN = [
    ((28, 3136, 12845056), (6030, 181), 1290),
    ((28, 3136, 12845056), (5924, 3902), 16171),
    ((28, 3136, 12845056), (8200, 98), 1172),
    ((28, 3136, 1003520), (51, 59), 4),
    ((28, 3136, 1003520), (57, 24), 8),
    ((28, 3136, 1003520), (7375, 164), 1195),
    ((28, 3136, 1003520), (3234, 131), 580),
    ((28, 3136, 1003520), (147, 5), 11),
    ((28, 3136, 12845056), (11, 242), 10),
    ((32, 65536, 16777216), (5897, 5419), 16226),
    ((32, 65536, 16777216), (3998, 5282), 16317),
    ((32, 65536, 16777216), (1024, 412), 416),
    ((32, 65536, 16777216), (46, 38), 72),
    ((32, 65536, 16777216), (3, 20), 84),
]
# Computed by its get_resize_output_image_size for Pixtral: (cell, longest edge), (width, height), tokens.
PIXTRAL = [
    ((16, 1024), (1617, 3342), 2048),
    ((16, 1024), (2389, 2158), 3770),
    ((16, 1024), (1280, 348), 1170),
    ((16, 1024), (2951, 1134), 1625),
    ((28, 1540), (3095, 3087), 3080),
    ((28, 1540), (3772, 4261), 2750),
    ((28, 1540), (4582, 841), 616),
]


@pytest.mark.parametrize(("rule", "size", "tokens"), QWEN)
def test_an_image_of_qwens_is_bounded_closely(rule: tuple[int, int, int], size: tuple[int, int], tokens: int) -> None:
    assert tokens <= Resized(*rule).tokens(*size) <= tokens * 1.25 + 2
    assert tokens <= Resized(*rule).tokens(None, None)


@pytest.mark.parametrize(("rule", "size", "tokens"), PIXTRAL)
def test_an_image_of_pixtrals_is_bounded_closely(rule: tuple[int, int], size: tuple[int, int], tokens: int) -> None:
    # It may be turned first, and then has as many breaks as its other side has cells.
    assert tokens <= Rows(*rule).tokens(*size) <= tokens * 1.1 + 20
    assert Rows(*rule).tokens(*size) == Rows(*rule).tokens(*reversed(size))
    assert tokens <= Rows(*rule).tokens(None, None)


VISION = {"image_size": 336, "patch_size": 14}


@pytest.mark.parametrize(
    ("config", "processor", "image", "audio"),
    [
        ({"model_type": "llava", "vision_config": VISION}, {}, 577, None),
        ({"model_type": "gemma3", "mm_tokens_per_image": 256}, {}, 256, None),
        ({"model_type": "gemma3", "mm_tokens_per_image": 256}, {"do_pan_and_scan": True}, None, None),
        ({"model_type": "gemma3n", "vision_soft_tokens_per_image": 256, "audio_config": {}}, {}, 256, 188),
        (
            {"model_type": "qwen2_5_vl"},
            {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056},
            16384,
            None,
        ),
        (
            {"model_type": "qwen3_vl"},
            {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 65536, "longest_edge": 16777216}},
            16384,
            None,
        ),
        ({"model_type": "qwen2_5_vl"}, None, None, None),
        ({"model_type": "pixtral", "vision_config": {"image_size": 1024, "patch_size": 16}}, {}, 4160, None),
        (
            {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"image_size": 1540, "patch_size": 14}},
            {"size": {"longest_edge": 1540}},
            3080,
            None,
        ),
        ({"model_type": "internvl", "image_seq_length": 256}, {"max_patches": 12}, 3330, None),
        (
            {
                "model_type": "internvl_chat",
                "max_dynamic_patch": 12,
                "downsample_ratio": 0.5,
                "force_image_size": 448,
                "vision_config": {"image_size": 448, "patch_size": 14},
            },
            None,
            3330,
            None,
        ),
        (
            {"model_type": "llama4", "vision_config": {**VISION, "pixel_shuffle_ratio": 0.5}},
            {"max_patches": 16},
            17 * 144 + 20,
            None,
        ),
        ({"model_type": "qwen2_audio"}, {}, None, 750),
        ({"model_type": "llama"}, {}, None, None),
        ({}, {}, None, None),
        ({"model_type": ["x"]}, {}, None, None),
        ({"model_type": "llava", "vision_config": {"image_size": "large", "patch_size": 14}}, {}, None, None),
        ({"model_type": "llava", "vision_config": {"image_size": 336, "patch_size": 0}}, {}, None, None),
    ],
)
def test_a_family_is_bounded_by_its_own_files_or_not_at_all(
    config: dict[str, object], processor: dict[str, object] | None, image: int | None, audio: int | None
) -> None:
    costs = read_costs(config, processor, {})
    assert (costs.image.tokens(None, None) if costs.image is not None else None) == image
    assert costs.audio_tokens == audio
    assert costs.tokens(IMAGE) == (None if image is None else image + FRAME_TOKENS)
    assert costs.tokens(MediaPart(MediaKind.VIDEO)) is None


def test_what_the_operator_gives_comes_first() -> None:
    costs = MediaCosts("llava", Fixed(577), given={MediaKind.IMAGE: 100, MediaKind.VIDEO: 5000})
    assert costs.tokens(IMAGE) == 100
    assert costs.tokens(MediaPart(MediaKind.VIDEO)) == 5000
    assert costs.tokens(MediaPart(MediaKind.DOCUMENT)) is None
    assert str(costs) == "image 100 tokens (KVGATE_MEDIA_TOKENS), video 5000 tokens (KVGATE_MEDIA_TOKENS)"


def with_images(*parts: MediaPart, media_parts: int | None = None) -> Prompt:
    number = len(parts) if media_parts is None else media_parts
    return Prompt(text_bytes=10, messages=1, media_parts=number, media=parts)


def test_a_prompt_with_images_is_bounded_by_the_dearest_backend() -> None:
    text = 10 + CHAT_TOKENS + MESSAGE_TOKENS
    cheap, dear = (MediaCosts("llava", Fixed(tokens)) for tokens in (100, 600))
    assert prompt_bound(with_images(IMAGE, IMAGE), [cheap]) == text + 2 * (100 + FRAME_TOKENS)
    assert prompt_bound(with_images(IMAGE, IMAGE), [cheap, dear]) == text + 2 * (600 + FRAME_TOKENS)


@pytest.mark.parametrize(
    ("prompt", "costs"),
    [
        (with_images(IMAGE), []),
        (with_images(IMAGE), [NO_COSTS]),
        (with_images(IMAGE), [MediaCosts("llava", Fixed(1)), NO_COSTS]),
        (with_images(IMAGE, media_parts=2), [MediaCosts("llava", Fixed(1))]),
        (with_images(IMAGE, MediaPart(MediaKind.OTHER)), [MediaCosts("llava", Fixed(1))]),
    ],
)
def test_one_part_that_nobody_can_bound_leaves_the_whole_context(prompt: Prompt, costs: list[MediaCosts]) -> None:
    assert prompt_bound(prompt, costs) is None
