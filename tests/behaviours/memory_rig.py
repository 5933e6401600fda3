"""An engine assembled from a TOML file with the layers of KV memory, and the end that it owes: device and host are whole.

Prompts are ids below 128; `fingerprint` reads every cached position back, so a wrong block, copy or key changes its answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from behaviours_rig import ASCII, Answer, Job, at_rest, check_end, eventually, greedy, run

from corekit.api import Prompt, SamplingParams
from corekit.compose.assemble import assemble
from corekit.compose.assembly import Assembly
from corekit.compose.config import load

LRU = ("lru-prefix", "free-list")
SWAP = ("cpu-swap", "free-list")
ALL = ("cpu-swap", "lru-prefix", "free-list")
SIZE = 4


def toml(executor: str, *, stack: Sequence[str], preemption: str, blocks: int, host: int, seats: int, budget: int, block_size: int, salted: str) -> str:
    text = f"""
[model]
source = "none"
use = "fingerprint"
max_model_len = 512
[model.options]
vocab_size = {ASCII.vocab_size}

[tokenizer]
use = "bytes"

[engine]
device = "cpu"
threads = 1

[executor]
use = "{executor}"

[attention_backend]
use = "torch"
[attention_backend.options]
poison = true

[scheduler]
max_num_seqs = {seats}
max_num_batched_tokens = {budget}
watermark = 0
preemption = "{preemption}"

[block_allocator]
num_blocks = {blocks}
block_size = {block_size}
hash_seed = "{salted}"
stack = {json.dumps(list(stack))}
"""
    if "cpu-swap" in stack:
        text += f"[block_allocator.options.cpu-swap]\nnum_host_blocks = {host}\n"
    if "lru-prefix" in stack:
        text += "[block_allocator.options.lru-prefix]\nsample_every = 2\n"
    return text


@contextmanager
def memory(
    executor: str = "in-process",
    stack: Sequence[str] = ALL,
    *,
    preemption: str = "auto",
    blocks: int = 128,
    host: int = 64,
    seats: int = 8,
    budget: int = 128,
    block_size: int = SIZE,
    hash_seed: str = "",
    policy: Any = None,
) -> Iterator[Assembly]:
    """On leaving: nobody is left, every block and host slot is back, and a plain request is answered."""
    text = toml(executor, stack=stack, preemption=preemption, blocks=blocks, host=host, seats=seats, budget=budget, block_size=block_size, salted=hash_seed)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "corekit.toml"
        path.write_text(text, "utf-8")
        config = load(path, environ={})
    with assemble(config, frontends=(), environ={}, progress=False, scheduler_policy=policy) as assembly:
        yield assembly
        check_whole(assembly)
        if policy is not None and hasattr(policy, "gate"):
            policy.arm()
            policy.gate.set()
        (plain,) = run(assembly, [Job("z", SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))])
        assert (len(plain[0].ids), plain[0].reason) == (1, "length")
        check_whole(assembly)


def check_whole(assembly: Assembly) -> None:
    """Nobody parked anything that is left: what the host holds is cache."""
    check_end(assembly)

    def whole() -> bool:
        kept = assembly.client.stats().memory
        return kept.num_host_used == kept.num_host_cached

    assert eventually(whole), assembly.client.stats().memory


def tell(assembly: Assembly, prompts: Sequence[Sequence[int]], max_tokens: int = 3, **more: Any) -> list[int]:
    """All at once, each answered as `fingerprint` answers it alone; the cached tokens of each."""

    async def one(prompt: Sequence[int]) -> int:
        answer, cached = [], []
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)
        async for output in assembly.client.generate(Prompt(token_ids=tuple(prompt)), params):
            answer += output.outputs[0].token_ids
            cached.append(output.num_cached_tokens)
        assert answer == greedy(prompt, max_tokens)
        return cached[-1]

    async def main() -> list[int]:
        return list(await asyncio.wait_for(asyncio.gather(*map(one, prompts)), 30))

    found = asyncio.run(main())
    assert at_rest(assembly), assembly.engine.audit()
    return found


def ids(samples: Sequence[Answer]) -> list[list[int]]:
    return [answer.ids for answer in samples]
