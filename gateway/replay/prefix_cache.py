"""What an engine keeps of prompts that it has computed: the contexts of sessions whose last turn has ended, in the blocks that
nobody needs. Who was used longest ago goes first. It is looked at when a turn starts or ends, not at every step."""

from collections import OrderedDict

from gateway.replay.engine import Engine


class PrefixCache:
    """Of one engine. Kept contexts and blocks in use never take more than the pool, as seen at the last look."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: OrderedDict[str, int] = OrderedDict()  # tokens by session
        self._kept_blocks = 0

    def take(self, session: str, shared_tokens: int) -> int:
        """A turn starts that has so many tokens in common with the one before: how many need not be computed. What was kept
        is the turn's own from now on."""
        self._make_room()
        tokens = self._kept.pop(session, 0)
        self._kept_blocks -= self._blocks(tokens)
        return min(shared_tokens, tokens) // self._engine.profile.block_tokens * self._engine.profile.block_tokens

    def keep(self, session: str, tokens: int) -> None:
        """A turn has ended with a context of so many tokens."""
        self._kept_blocks += self._blocks(tokens) - self._blocks(self._kept.pop(session, 0))
        self._kept[session] = tokens
        self._make_room()

    def _make_room(self) -> None:
        room = self._engine.profile.blocks - self._engine.used_blocks
        while self._kept and self._kept_blocks > room:
            _, tokens = self._kept.popitem(last=False)
            self._kept_blocks -= self._blocks(tokens)

    def _blocks(self, tokens: int) -> int:
        return tokens // self._engine.profile.block_tokens
