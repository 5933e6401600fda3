"""The generated parts of the pages are what the code says: tables of the configuration, laws of kits, files of the examples."""

from __future__ import annotations

import re
import runpy

import pytest
from page_files import DOCS

from corekit.api import SLOTS
from corekit.compose.tables import Tables

SCRIPT = runpy.run_path(str(DOCS / "generate.py"))
MARKED = {path: text for path in sorted(DOCS.rglob("*.md")) if "\n<!-- generated:" in (text := path.read_text("utf-8"))}
PAGE = MARKED[DOCS / "configuration.md"]


@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.stem)
def test_the_page_is_up_to_date(path: object) -> None:
    assert SCRIPT["generated"](MARKED[path]) == MARKED[path], "the page is stale; run `python docs/generate.py`"  # type: ignore[index]


def test_what_changes_in_the_code_changes_the_page() -> None:
    """The check above can fail: a page with another number in it is not what would be generated."""
    assert "integer, 1 to 65536" in PAGE
    assert SCRIPT["generated"](PAGE.replace("integer, 1 to 65536", "integer, 1 to 9")) == PAGE


def test_marks_are_closed() -> None:
    for path, text in MARKED.items():
        assert re.findall(r"^<!-- (generated|end)\b", text, re.MULTILINE) == ["generated", "end"] * text.count("<!-- end -->"), path


def test_every_table_has_its_part_of_the_page() -> None:
    headings = dict(re.findall(r"^## \[+([a-z_]+)\]+\n(?:(?!^## ).*\n)*?<!-- generated: table (\w+) -->", PAGE, re.MULTILINE))
    assert headings == {name: name for name in Tables.model_fields if name != "tool_format"}
    assert {slot.name for slot in SLOTS} <= {*headings, "tool_format"}


def test_every_key_and_option_says_what_it_means() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if row.endswith("|  |")] == [], "no text beneath the field in its table or options class"
