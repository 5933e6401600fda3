"""Keys of block-sized prefixes. Knows tokens; nothing of blocks or of who holds them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from corekit.api import BlockKey

Digest = Callable[[bytes], bytes]


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


class KeyChain:
    """Interns keys: equal prefixes give the same object, so look-ups compare identity and a hash collision cannot matter.

    The hash of a key is the digest of its parent's (the seed for a root), its tokens as 64-bit integers and its tagged extra.
    """

    def __init__(self, block_size: int, seed: bytes = b"", digest: Digest = sha256) -> None:
        self._size = block_size
        self._seed = seed
        self._digest = digest
        self._format = struct.Struct(f"<{block_size}q")
        self._keys: WeakValueDictionary[tuple[BlockKey | None, tuple[int, ...], tuple[str, ...]], BlockKey] = WeakValueDictionary()

    def extend(self, keys: list[BlockKey], tokens: Sequence[int], num_tokens: int, extra: tuple[str, ...] = ()) -> None:
        """Grow keys in place to cover the full blocks among the first num_tokens tokens."""
        size = self._size
        for at in range(len(keys), num_tokens // size):
            keys.append(self._child(keys[-1] if keys else None, tuple(tokens[at * size : (at + 1) * size]), extra))

    def _child(self, parent: BlockKey | None, tokens: tuple[int, ...], extra: tuple[str, ...]) -> BlockKey:
        key = self._keys.get((parent, tokens, extra))
        if key is None:
            content = [parent.hash if parent else self._seed, self._format.pack(*tokens)]
            for tag in map(str.encode, extra):
                content += [struct.pack("<q", len(tag)), tag]
            hash = self._digest(b"".join(content))
            key = self._keys[parent, tokens, extra] = BlockKey(hash=hash, parent=parent, tokens=tokens, extra=extra)
        return key
