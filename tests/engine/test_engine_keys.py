"""Keys of prefixes: interned, seeded, told apart by all that a block depends on; and answers that a hash cannot spoil."""

from __future__ import annotations

import gc
import hashlib
import itertools
import random
import struct
from typing import Any

import pytest
from forced import Book, Forced, everyone, finish
from world import Setting, World

from corekit.api import BlockKey, BuildContext
from corekit.compose.config import Config
from corekit.compose.keys import key_chain
from corekit.engine.keys import KeyChain, sha256


def keys_of(chain: KeyChain, tokens: Any, extra: tuple[str, ...] = ()) -> list[BlockKey]:
    keys: list[BlockKey] = []
    chain.extend(keys, list(tokens), len(tokens), extra)
    return keys


def test_equal_prefixes_have_the_same_keys_and_no_others_do() -> None:
    """On all pairs of some chains: one object exactly where tokens up to there, and extra, are equal."""
    chain, rng = KeyChain(2), random.Random(3)
    made = []
    for _ in range(40):
        tokens, extra = [rng.randrange(2) for _ in range(rng.randint(0, 9))], rng.choice(((), ("salt:a",), ("salt:b",)))
        made.append((tokens, extra, keys_of(chain, tokens, extra)))
    same = 0
    for (tokens, extra, keys), (others, another, their) in itertools.combinations(made, 2):
        assert len(keys) == len(tokens) // 2
        for at, (key, other) in enumerate(zip(keys, their, strict=False)):
            equal = (tokens[: 2 * at + 2], extra) == (others[: 2 * at + 2], another)
            assert (key is other) == (key == other) == equal
            assert (key.hash == other.hash) == equal
            same += equal
    assert same > 20


def test_a_key_says_what_it_stands_for() -> None:
    first, second = keys_of(KeyChain(3), [5, 6, 7, 8, 9, 10, 11], ("salt:x",))
    assert (first.parent, first.tokens, first.extra, first.group) == (None, (5, 6, 7), ("salt:x",), 0)
    assert (second.parent, second.tokens) == (first, (8, 9, 10))


def test_keys_grow_in_place_and_only_by_full_blocks() -> None:
    chain, keys, tokens = KeyChain(4), [], list(range(11))
    for num_tokens in range(12):
        before = list(keys)
        chain.extend(keys, tokens, num_tokens)
        assert keys[: len(before)] == before
        assert len(keys) == num_tokens // 4
    assert keys == keys_of(chain, tokens)


def test_the_hash_is_of_the_parent_the_tokens_and_the_tagged_extra() -> None:
    """Written out, so that what is kept outside the process stays readable."""
    first, second = keys_of(KeyChain(2, b"seed"), [1, 2**40, 3, 4], ("salt:x", "é"))
    tags = b"".join(struct.pack("<q", len(tag)) + tag for tag in (b"salt:x", "é".encode()))
    assert first.hash == hashlib.sha256(b"seed" + struct.pack("<qq", 1, 2**40) + tags).digest()
    assert second.hash == hashlib.sha256(first.hash + struct.pack("<qq", 3, 4) + tags).digest()


@pytest.mark.parametrize(("one", "other"), [(("a", "bc"), ("ab", "c")), (("ab",), ("a", "b")), ((), ("",)), (("a", "b"), ("b", "a"))])
def test_tags_are_told_apart_whatever_their_lengths(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    chain = KeyChain(2)
    [key], [another] = keys_of(chain, [1, 2], one), keys_of(chain, [1, 2], other)
    assert key is not another
    assert key.hash != another.hash


def test_a_seed_gives_the_same_hashes_and_another_gives_others() -> None:
    made = {seed: [key.hash for key in keys_of(KeyChain(2, seed), range(8))] for seed in (b"", b"a", b"b")}
    assert made[b"a"] == [key.hash for key in keys_of(KeyChain(2, b"a"), range(8))]
    assert len({hash for hashes in made.values() for hash in hashes}) == 12


def test_keys_that_nobody_holds_are_forgotten() -> None:
    chain = KeyChain(2)
    keys = keys_of(chain, range(8))
    held = keys[1]
    del keys
    gc.collect()
    assert len(chain._keys) == 2, "a key holds its parents"
    assert keys_of(chain, range(8))[1] is held


def configured(**table: Any) -> Config:
    return Config.model_validate({"model": {"source": "none", "use": "fingerprint"}, "block_allocator": table})


@pytest.mark.parametrize(("hash", "size"), [("sha256", 32), ("xxh3-128", 16)])
def test_the_configuration_names_digest_and_seed(hash: str, size: int) -> None:
    def hashes(**table: Any) -> list[bytes]:
        return [key.hash for key in keys_of(key_chain(configured(hash=hash, **table), BuildContext(block_size=4)), range(8))]

    known = hashes(hash_seed="known")
    assert [len(one) for one in known] == [size, size]
    assert hashes(hash_seed="known") == known
    assert hashes(hash_seed="another") != known
    assert hashes() != hashes(), "without a seed nobody can guess it"


def test_the_seed_covers_what_makes_blocks_of_equal_tokens_differ() -> None:
    def root(size: int = 4, source: str = "none", **known: str) -> bytes:
        config = Config.model_validate({"model": {"source": source, "use": "fingerprint"}, "block_allocator": {"hash_seed": "s"}})
        return keys_of(key_chain(config, BuildContext(block_size=size, **known)), range(size))[0].hash

    assert len({root(), root(2), root(dtype="bfloat16"), root(kv_dtype="float16"), root(quantization="int8"), root(source="somewhere")}) == 6


# -- a hash that says nothing


@pytest.mark.parametrize("digest", [sha256, lambda content: b"the same"], ids=["sha256", "constant"])
@pytest.mark.parametrize("stack", ["plain", "lru", "lru+swap"])
def test_different_text_never_shares_whatever_the_digest(stack: str, digest: Any) -> None:
    """Other beginnings before an equal middle; another last token; the same under another salt: hits end at the first block that differs."""
    world = World(Setting(stack=stack, num_blocks=20, num_host_blocks=12))
    world.scheduler._keys._digest = digest
    world.scheduler.planner.policy = Forced({at: everyone("swap") for at in range(2, 99, 4)}, world.scheduler.planner.policy)
    middle = [*range(20, 32)]
    book = Book.of(world)
    cached = []
    for prompt, salt in (
        ([1, 2, 3, 4, *middle], None),
        ([4, 3, 2, 1, *middle], None),
        ([1, 2, 3, 4, *middle[:-1], 9], None),
        ([1, 2, 3, 4, *middle], "tenant"),
        ([1, 2, 3, 4, *middle, 5], None),
        ([*middle, 1, 2, 3, 4], None),
    ):
        world.ask(prompt, max_tokens=6, cache_salt=salt)
        finish(world)
        cached.append(book.requests[-1].num_cached_tokens)
    assert cached == [0, 0, 12, 0, 16, 0]
