"""Names for the content of KV blocks: a chained cryptographic hash of the tokens that lead to them.

The digest of a block covers every token before it (through its parent's digest) and a salt, so two blocks with
the same digest hold the same keys and values, and one tenant can never probe what another has cached. A short
non-cryptographic hash would let a crafted prompt collide with somebody else's block.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_SIZE = 16


def root_digest(salt: str = "") -> bytes:
    """The parent of a first block. ``salt`` separates tenants (and anything else that changes K and V)."""
    return blake2b(b"sits.kv.1\0" + salt.encode(), digest_size=DIGEST_SIZE).digest()


def block_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of the block that holds ``tokens`` and follows the block named ``parent``."""
    return blake2b(array("q", tokens).tobytes(), digest_size=DIGEST_SIZE, key=parent).digest()


def extend_digests(
    digests: list[bytes], root: bytes, tokens: Sequence[int], block_size: int, full_blocks: int
) -> None:
    """Append to ``digests`` until it names the first ``full_blocks`` blocks of ``tokens``."""
    parent = digests[-1] if digests else root
    for index in range(len(digests), full_blocks):
        parent = block_digest(parent, tokens[index * block_size : (index + 1) * block_size])
        digests.append(parent)
