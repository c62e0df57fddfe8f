"""The pool of KV blocks of the pretend engine.

Invariants: every block is free or owned by one sequence; free + used = usable at every instant; block 0, the null block,
holds nothing and is never given out, so usable = blocks in all - 1.
"""


class OutOfBlocks(Exception):
    """More blocks were taken than are free. The scheduler asks first, so this is a bug in it."""


class BlockPool:
    """Numbered blocks of `block_tokens` tokens each."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        """num_blocks: all of them, the null block included, at least 2. block_tokens: at least 1."""
        if num_blocks < 2 or block_tokens < 1:
            raise ValueError(f"a pool needs 2 blocks of 1 token, not {num_blocks} of {block_tokens}")
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks - 1, 0, -1))  # taken from the end: low numbers first
        self._is_free = bytearray(b"\x00" + b"\x01" * (num_blocks - 1))

    def __repr__(self) -> str:
        return f"{self.used} of {self.usable} blocks of {self.block_tokens} tokens in use"

    @property
    def usable(self) -> int:
        """Blocks that can hold tokens."""
        return self.num_blocks - 1

    @property
    def free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that sequences own."""
        return self.usable - self.free

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens of one sequence."""
        return -(-tokens // self.block_tokens)

    def take(self, count: int) -> list[int]:
        """`count` free blocks, now the caller's. Raises OutOfBlocks if there are fewer."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        for block in taken:
            self._is_free[block] = 0
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks; the list is emptied, so that the owner cannot return them twice. Raises ValueError on a free one."""
        for block in blocks:
            if self._is_free[block]:
                raise ValueError(f"block {block} was free already")
            self._is_free[block] = 1
            self._free.append(block)
        blocks.clear()
