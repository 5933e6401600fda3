"""Every recipe of the cookbook does what it says, as it stands on the page, with a model without weights in the place of the demo."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from page_files import DOCS, write

from corekit import LLM, SamplingParams, assemble
from corekit.api import Prompt
from corekit.compose.assembly import Assembly
from corekit.compose.config import load

STAND_IN = {
    "MODEL__SOURCE": "none",
    "MODEL__USE": "scripted",
    "MODEL__OPTIONS__TEXTS": '["A boat sails far out."]',
    "TOKENIZER__USE": "bytes",
    "BLOCK_ALLOCATOR__NUM_BLOCKS": "64",
}


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every file of the page; the configuration of what runs there says the stand-in instead of the demo model."""
    for name, value in STAND_IN.items():
        monkeypatch.setenv(f"COREKIT__{name}", value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return write("cookbook.md", tmp_path)


def test_there_are_five_recipes_at_least_and_each_is_tested() -> None:
    recipes = re.findall(r"^## (.*)$", (DOCS / "cookbook.md").read_text("utf-8"), re.MULTILINE)
    assert len(recipes) >= 5
    assert sorted(recipes) == sorted(RECIPES)


def changes_who_runs_next(kitchen: Path) -> None:
    """The first is the shortest, so it runs first whether or not the others have come by then; meanwhile they do."""
    prompts = ["a", "a prompt that is long", "a short one", "tiny"]
    ended = asyncio.run(runpy.run_path("shortest.py")["main"](prompts))
    assert ended == [prompts[0], prompts[3], prompts[2], prompts[1]]


def writes_a_line_for_every_request(kitchen: Path) -> None:
    with LLM(config="journal.toml") as llm:
        llm.generate(["a", "b"], SamplingParams(max_tokens=3))
    deadline = time.monotonic() + 10
    while len(lines := (kitchen / "requests.jsonl").read_text().splitlines()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [json.loads(line)["num_output_tokens"] for line in lines] == [3, 3]


def forbids_repetition(kitchen: Path) -> None:
    """The model would say the same again and again; the guard's own folder is on the path in the place of its installation."""
    params, model = SamplingParams(max_tokens=24, temperature=0), {"options": {"texts": ["lalalalalalalala"]}}

    def trigrams(**more: Any) -> list[tuple[int, ...]]:
        with LLM(model=model, **more) as llm:
            ids = llm.generate("Say la.", params)[0].outputs[0].token_ids
        return [ids[at : at + 3] for at in range(len(ids) - 2)]

    assert len(set(trigrams())) < 5
    sys.path.insert(0, str(DOCS.parent / "examples" / "corekit-ngram-guard"))
    try:
        guarded = trigrams(config="guard.toml", plugins={"import": ["corekit_ngram_guard"]})
    finally:
        del sys.path[0]
    assert len(set(guarded)) == len(guarded) > 5


def serves_from_a_web_application(kitchen: Path) -> None:
    from starlette.applications import Starlette

    app: Starlette = runpy.run_path("app.py")["app"]

    async def ask() -> None:
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            assert (await client.post("/answer", content="Water")).text == "A boat sails far out."
            refused = await client.post("/answer", content="w" * 5000)
            assert refused.status_code == 400
            assert "error" in refused.json()

    asyncio.run(ask())


def has_two_engines(kitchen: Path) -> None:
    assert runpy.run_path("two.py")["compare"]("x", "none", "none") == ["A boat sails far"] * 2


def lets_urgent_requests_go_first(kitchen: Path) -> None:
    """One seat: the urgent request takes it from the first, which goes on before the one that came after it."""
    given = {"plugins.import": ["corekit_openai_http"], "frontend": [{"use": "openai-http", "options": {"port": 0}}], "max_num_seqs": 1}
    scripted = {"model.options": {"step_seconds": 0.005, "texts": ["so many words to say"]}}
    config = load(kitchen / "priority.toml", environ=os.environ, given={**given, **scripted})
    assert config.scheduler_policy.use == "priority"
    ended: list[int] = []

    async def ask(client: httpx.AsyncClient, priority: int, max_tokens: int = 8) -> None:
        body = {"model": "scripted", "prompt": "Fire! Call", "max_tokens": max_tokens, "priority": priority}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        ended.append(priority)

    async def main() -> None:
        with assemble(config) as assembly:
            serving = asyncio.create_task(assembly.serve())
            (frontend,) = assembly.frontends
            while frontend.address is None:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient(base_url=frontend.address, timeout=60) as client:  # type: ignore[attr-defined]
                first = asyncio.create_task(ask(client, 0, 20))
                while assembly.client.stats().num_running == 0:
                    await asyncio.sleep(0.01)
                await asyncio.gather(ask(client, 1), ask(client, -1), first)
            serving.cancel()
            await asyncio.wait({serving})

    asyncio.run(main())
    assert ended == [-1, 0, 1]


def keeps_a_beginning_cached(kitchen: Path) -> None:
    ask = runpy.run_path("rules.py")["ask"]
    with LLM() as llm:
        found = [ask(llm, question, tenant)[1] for question, tenant in (("a", "one"), ("b", "one"), ("c", "one"), ("c", "two"))]
        retained = llm.assembly.client.stats().memory.num_retained
    assert found[0] == found[3] == 0
    assert found[1] == found[2] >= 64
    assert retained > 0


def parks_requests(kitchen: Path) -> None:
    """Twelve blocks for four answers of four blocks and more: somebody gives way, and his blocks go to the host."""
    given = {"model.options": {"texts": ["so many words to say"]}, "num_blocks": 12, "block_allocator.block_size": 4, "frontend": []}
    answers: list[str] = []

    async def ask(assembly: Assembly, number: int) -> None:
        params = SamplingParams(max_tokens=20, temperature=0)
        answers.append("".join([news.outputs[0].text async for news in assembly.client.generate(Prompt(text=f"{number} prompt"), params)]))

    async def main(assembly: Assembly) -> None:
        await asyncio.gather(*(ask(assembly, number) for number in range(4)))

    with assemble(load(kitchen / "swap.toml", environ=os.environ, given=given)) as assembly:
        asyncio.run(main(assembly))
        stats = assembly.client.stats()
    assert answers == ["so many words to say"] * 4
    assert stats.num_swap_preemptions == stats.num_preemptions > 0
    assert stats.num_bytes_to_device > 0


RECIPES = {
    "Change who runs next": changes_who_runs_next,
    "Write a line of JSON for every request": writes_a_line_for_every_request,
    "Forbid repetition": forbids_repetition,
    "Serve from your own web application": serves_from_a_web_application,
    "Two engines in one process": has_two_engines,
    "Let urgent requests go first": lets_urgent_requests_go_first,
    "Keep a long beginning cached": keeps_a_beginning_cached,
    "Park requests instead of computing them again": parks_requests,
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: str, kitchen: Path) -> None:
    RECIPES[recipe](kitchen)
