"""One BOS: whether the template or the tokenizer writes it, over HTTP and in Python alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from behaviours_rig import served
from tokenizers import pre_tokenizers

from corekit.api import Prompt, SamplingParams
from corekit.builtin.hf_tokenizer import HfTokenizer
from corekit.compose.assembly import Assembly

BYTES = {piece: index for index, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
BOS, EOS = len(BYTES), len(BYTES) + 1
TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


@dataclass
class Files:
    """A byte-level tokenizer that puts BOS before every text, with a chat template."""

    template: str
    name: str = "test"
    config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)

    def tokenizer_files(self) -> dict[str, bytes]:
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        added = [
            {"id": BOS + at, "content": text, "special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
            for at, text in enumerate(("<s>", "</s>"))
        ]
        single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
        post = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}}
        document = {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": level,
            "decoder": level,
            "post_processor": post,
            "model": {"type": "BPE", "vocab": BYTES, "merges": [], "ignore_merges": False},
        }
        settings = {"chat_template": self.template, "bos_token": "<s>", "eos_token": "</s>"}
        return {"tokenizer.json": json.dumps(document).encode(), "tokenizer_config.json": json.dumps(settings).encode()}


@pytest.fixture(params=["{{ bos_token }}" + TURNS, TURNS], ids=["template writes it", "template leaves it out"])
def spied(request: pytest.FixtureRequest) -> Iterator[tuple[httpx.Client, Assembly, list[tuple[int, ...]], bool]]:
    """The ids of every prompt that reaches the engine."""
    tokenizer = HfTokenizer(Files(request.param))  # type: ignore[arg-type]
    with served(model="scripted", vocab_size=258, eos_token_id=EOS, parts={"tokenizer": tokenizer}) as (http, assembly):
        seen: list[tuple[int, ...]] = []
        submit = assembly.engine.submit
        assembly.engine.submit = lambda asked: (seen.append(asked.token_ids), submit(asked))[1]  # type: ignore[method-assign,assignment]
        yield http, assembly, seen, "bos" in request.param


def test_one_bos_online_and_offline(spied: tuple[httpx.Client, Assembly, list[tuple[int, ...]], bool]) -> None:
    http, assembly, seen, written = spied
    common = {"model": "scripted", "temperature": 0, "max_tokens": 2}
    messages = [{"role": "user", "content": "hi <s>there"}]
    chat = http.post("/v1/chat/completions", json={**common, "messages": messages})
    assert chat.status_code == 200, chat.text
    raw = http.post("/v1/completions", json={**common, "prompt": "hi there"})
    assert raw.status_code == 200, raw.text
    assert [one.json()["usage"]["prompt_tokens"] for one in (chat, raw)] == [len(ids) for ids in seen]
    online = list(seen)
    assert online[0].count(BOS) == written, "a chat has the BOS that its template writes, and no other"
    assert not written or online[0][0] == BOS
    assert (online[1].count(BOS), online[1][0]) == (1, BOS)
    seen.clear()
    _offline(assembly, messages)
    assert seen == online


def _offline(assembly: Assembly, messages: list[dict[str, str]]) -> None:
    async def main() -> None:
        for prompt in (Prompt(messages=tuple(messages)), Prompt(text="hi there")):
            async for _ in assembly.client.generate(prompt, SamplingParams(temperature=0, max_tokens=2)):
                pass

    asyncio.run(main())
