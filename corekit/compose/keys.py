"""How the keys of blocks are hashed. Knows the configuration; nothing of who looks a key up."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from corekit.api import BuildContext
from corekit.engine.keys import KeyChain, sha256

from .config import Config


def key_chain(config: Config, context: BuildContext) -> KeyChain:
    """Keys are equal where seed, model, dtypes, block size and tokens are. Without a `hash_seed` nobody can guess the seed."""
    table = config.block_allocator
    digest = sha256 if table.hash == "sha256" else _xxh3()
    seed = table.hash_seed.encode() or secrets.token_bytes(16)
    told = [config.model.source, context.dtype, context.kv_dtype, context.quantization, str(context.block_size)]
    return KeyChain(context.block_size, digest(b"\0".join([seed, *map(str.encode, told)])), digest)


def _xxh3() -> Callable[[bytes], bytes]:
    """16 bytes, several times as fast as sha256; whoever knows the seed can make two contents collide."""
    from xxhash import xxh3_128_digest

    return xxh3_128_digest
