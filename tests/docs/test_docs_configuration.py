"""The configuration reference is what the tables and the parts say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from corekit.compose.tables import Tables

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "configuration.md").read_text("utf-8")
SCRIPT = runpy.run_path(str(DOCS / "generate_configuration.py"))


def test_the_page_is_up_to_date() -> None:
    assert SCRIPT["generated"](PAGE) == PAGE, "docs/configuration.md is stale; run `python docs/generate_configuration.py`"


def test_what_changes_in_the_code_changes_the_page() -> None:
    """The check above can fail: a page with another number in it is not what would be generated."""
    assert "integer, 1 to 65536" in PAGE
    assert SCRIPT["generated"](PAGE.replace("integer, 1 to 65536", "integer, 1 to 9")) == PAGE


def test_every_table_has_its_part_of_the_page() -> None:
    headings = dict(re.findall(r"^## \[+([a-z_]+)\]+\n(?:(?!^## ).*\n)*?<!-- generated: (\w+) -->", PAGE, re.MULTILINE))
    assert headings == {name: name for name in Tables.model_fields if name not in ("http_route", "tool_format")}


def test_every_key_and_option_says_what_it_means() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if row.endswith("|  |")] == [], "no text beneath the field in its table or options class"
