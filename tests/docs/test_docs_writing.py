"""The plugins of the guides run: as distributions, as modules on the path; and its tables are complete."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli
from page_files import DOCS, files, write

from corekit import LLM, SamplingParams
from corekit.api import BuildContext, Provider, RequestOutput
from corekit.compose.errors import ConfigError

PAGE = (DOCS / "writing-plugins.md").read_text("utf-8")
README = (DOCS.parent / "README.md").read_text("utf-8")
SOURCES = "\n".join(path.read_text("utf-8") for path in (DOCS.parent / "corekit").rglob("*.py"))
SMALL = {"source": "none", "model": {"use": "fingerprint"}, "tokenizer": "bytes", "max_model_len": 64, "num_blocks": 16, "max_num_seqs": 2}
PROMPTS = ["first", "second", "third", "fourth"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with every file of the page, on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield write("writing-plugins.md", tmp_path)
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("corekit_lifo", "corekit_ngram_guard", "logging_any", "logging_attention", "newest")
    ]:
        del sys.modules[name]


def answers(**options: object) -> list[tuple[int, ...]]:
    with LLM(**{**SMALL, **options}) as llm:  # type: ignore[arg-type]
        outputs: list[RequestOutput] = llm.generate(PROMPTS, SamplingParams(max_tokens=8))
        return [output.outputs[0].token_ids for output in outputs]


def column(title: str) -> list[str]:
    """The names in the first column of the table that is headed by `title`."""
    (table,) = re.findall(rf"^\| {re.escape(title)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [row.split("|")[1].strip() for row in table.splitlines()]


@pytest.mark.parametrize("declared", [Provider, BuildContext])
def test_every_field_is_in_the_table_in_order(declared: type) -> None:
    assert column(f"Field of `{declared.__name__}`") == [f"`{field.name}`" for field in dataclasses.fields(declared)]


def test_the_messages_are_those_of_the_code() -> None:
    quoted = [message for cell in column("What you see") for message in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 10
    assert [message for message in quoted if message not in SOURCES] == []


def test_what_wraps_another_changes_no_answer(desk: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = answers()
    write("slots/attention_backend.md", desk)
    caplog.set_level("DEBUG", "logging_attention")
    assert answers(config="logging_any.toml") == expected
    assert any("2 rows" in record.message for record in caplog.records)
    with pytest.raises(ConfigError, match=r"wraps = 'torhc': no such provider\. Did you mean 'torch'"):
        answers(config="logging_any.toml", attention_backend={"options": {"inner": "torhc"}})


# corekit-lifo as a real distribution, and the README's module beside it


def test_the_plugins_of_the_guide_and_the_readme_run(desk: Path) -> None:
    """The folder is as pip would leave it: the page's package, and metadata made of the page's pyproject."""
    project = tomli.loads(files("writing-plugins.md")["pyproject.toml"])["project"]
    metadata = desk / f"corekit_lifo-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    entries = "\n".join(f"{key} = {value}" for key, value in project["entry-points"]["corekit"].items())
    (metadata / "entry_points.txt").write_text(f"[corekit]\n{entries}\n")
    (newest,) = [block for block in re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE) if "hookimpl" in block]
    (desk / "newest.py").write_text(newest)
    expected = answers()
    with LLM(**SMALL, scheduler_policy={"use": "lifo", "options": {"patience": 5.0}}) as llm:  # type: ignore[arg-type]
        (part,) = (part for part in llm.assembly.parts if part.slot == "scheduler_policy")
        assert (part.distribution, part.version, part.name) == ("corekit-lifo", project["version"], "lifo")
        assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, SamplingParams(max_tokens=8))] == expected
    assert answers(scheduler_policy="newest", plugins={"import": ["newest"]}) == expected
    with pytest.raises(ConfigError, match=r"patience must be a number of seconds from 0 to 3600, got -1\.0"):
        answers(scheduler_policy={"use": "lifo", "options": {"patience": -1.0}})
