"""The guide to testing: its test files pass, its broken part fails as it says, its fakes are there."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from page_files import DOCS, write

from corekit import LLM, SamplingParams
from corekit.testing import BlockAllocatorKit

PAGE = (DOCS / "testing-plugins.md").read_text("utf-8")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The plugin of the allocator's page, and the files of this one in the place of its test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write("slots/block_allocator.md", tmp_path)
    yield write("testing-plugins.md", tmp_path)
    for name in ("counting", "test_counting", "test_counting_engine"):
        sys.modules.pop(name, None)


def test_the_test_files_pass(desk: Path) -> None:
    module = import_module("test_counting")
    module.TestCounting().test_the_peak_is_the_most_that_were_used_at_once()
    module.test_the_law_sees_a_count_that_is_wrong()
    import_module("test_counting_engine").test_no_answer_depends_on_the_layer()


def test_a_layer_over_a_prefix_cache_sees_evictions(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the allocator's page, on a model without weights."""
    layers: list[Any] = []
    counting = import_module("counting").Counting
    first = counting.__init__

    def remembered(self: Any, inner: Any) -> None:
        first(self, inner)
        layers.append(self)

    monkeypatch.setattr(counting, "__init__", remembered)
    tables = tomllib.loads((desk / "over_cache.toml").read_text("utf-8")) | {"tokenizer": {"use": "bytes"}}
    tables["model"] |= {"source": "none", "use": "fingerprint"}
    with LLM(config=tables) as llm:
        llm.generate(["one " * 40], SamplingParams(max_tokens=2))
        assert layers[0].stats().num_evicted == 0
        llm.generate(["two " * 40], SamplingParams(max_tokens=2))
        assert layers[0].stats().num_evicted > 0


def test_a_broken_part_fails_as_the_page_says(desk: Path) -> None:
    """The class on the page, the law's docstring and its message."""
    (code,) = [block for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "class Greedy" in block]
    (said,) = re.findall(r"^```\n(test_.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    law, docstring, message = said.splitlines()
    names: dict[str, object] = {}
    exec(compile(code, "testing-plugins.md", "exec"), names)
    greedy = names["Greedy"]
    counting = import_module("counting").COUNTING
    kit = type("OnGreedy", (BlockAllocatorKit,), {"provider": replace(counting, build=lambda context, options: greedy(context.inner))})  # type: ignore[operator]
    assert getattr(kit, law).__doc__ == docstring
    with pytest.raises(AssertionError) as caught:
        getattr(kit(), law)()
    assert f"AssertionError: {caught.value}".splitlines()[0] == message


def test_the_fakes_are_there() -> None:
    fakes = re.findall(r"^\| `(corekit\.testing\.[\w.]+)`", PAGE, re.MULTILINE)
    assert len(fakes) > 5
    for fake in fakes:
        module, _, name = fake.rpartition(".")
        assert hasattr(import_module(module), name), fake
