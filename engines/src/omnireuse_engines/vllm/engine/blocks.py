"""The blocks of the paged KV cache: who uses which, and which hold a known prefix. No tensor in sight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from omnireuse.errors import StateError

__all__ = ["BlockPool"]


class BlockPool:
    """Hand out blocks. One that nobody uses keeps its content until it is handed out again, oldest first.

    Args:
        num_blocks: how many there are.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_users = [0] * num_blocks
        self._free: dict[int, None] = dict.fromkeys(range(num_blocks))  # ordered: the first is handed out first
        self._block_of: dict[str, int] = {}
        self._hash_of: dict[int, str] = {}
        self._evicted: list[int] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out."""
        return len(self._free)

    def find_prefix(self, block_hashes: Sequence[str]) -> list[int]:
        """Return the blocks that hold the longest known prefix. They are not taken yet."""
        found = []
        for block_hash in block_hashes:
            if block_hash not in self._block_of:
                break
            found.append(self._block_of[block_hash])
        return found

    def take(self, block_ids: Iterable[int]) -> None:
        """Become a user of blocks with known content."""
        for block_id in block_ids:
            self._free.pop(block_id, None)
            self._num_users[block_id] += 1

    def allocate(self, count: int) -> list[int]:
        """Take blocks to write on; what they held is given up.

        Raises:
            StateError: there are not as many free ones.
        """
        if count > self.num_free:
            raise StateError(f"BlockPool.allocate({count}): must be at most the {self.num_free} free blocks")
        block_ids = [block_id for block_id, _ in zip(self._free, range(count), strict=False)]
        for block_id in block_ids:
            block_hash = self._hash_of.pop(block_id, None)
            if block_hash is not None:
                del self._block_of[block_hash]
                self._evicted.append(block_id)
        self.take(block_ids)
        return block_ids

    def release(self, block_ids: Sequence[int]) -> None:
        """Stop using blocks. The last of a sequence goes first: a prefix is worth more than what follows it."""
        for block_id in reversed(block_ids):
            self._num_users[block_id] -= 1
            if not self._num_users[block_id]:
                self._free[block_id] = None

    def publish(self, block_id: int, block_hash: str) -> None:
        """Make a full block findable by its content; a second copy of the same content stays unknown."""
        if block_id not in self._hash_of and block_hash not in self._block_of:
            self._block_of[block_hash], self._hash_of[block_id] = block_id, block_hash

    def drain_evicted(self) -> list[int]:
        """Return the blocks whose known content was given up since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def assert_invariants(self) -> None:
        """Assert that a block is free exactly if nobody uses it, and that both directories agree."""
        assert set(self._free) == {block for block, users in enumerate(self._num_users) if not users}
        assert all(users >= 0 for users in self._num_users)
        assert {block: name for name, block in self._block_of.items()} == self._hash_of
