"""The page's words: one for every reason that there is, and the same ones in the README's chapter for operators."""

import re
from pathlib import Path

from gateway.core.outcomes import RejectReason
from gateway.core.waits import WaitReason

ROOT = Path(__file__).parent.parent.parent.parent
SCRIPT = (ROOT / "gateway" / "web" / "console" / "console.js").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(opening: str, closing: str) -> str:
    """What stands between the two in the script."""
    _, found, rest = SCRIPT.partition(opening)
    assert found, opening
    return rest.partition(closing)[0]


def test_every_reason_to_wait_has_its_words() -> None:
    """One without would end the page's drawing at the first who waits for it."""
    words = re.findall(r"^  (\w+): \(", block("const REASONS = {", "\n};"), re.MULTILINE)
    assert set(words) == {reason.value for reason in WaitReason}


def test_the_readme_explains_the_words_of_the_line() -> None:
    for words in ("computes as many prompts as it may", "the room is kept for one ahead", "no backend serves it now"):
        assert words in SCRIPT
        assert words in README


def test_what_waiting_does_not_cure_is_told_from_what_it_does() -> None:
    callers = set(re.findall(r'"(\w+)"', block("const CALLERS = new Set([", "]);")))
    ours = {
        *(RejectReason.QUEUE_FULL, RejectReason.PREDICTED_WAIT, RejectReason.QUEUE_TIMEOUT, RejectReason.TENANT_LIMIT),
        *(RejectReason.NO_BACKEND, RejectReason.DRAINING),
    }
    assert callers == {reason.value for reason in RejectReason} - {reason.value for reason in ours}
