"""docs/http.md, as tests read it."""

from __future__ import annotations

from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/http.md").read_text("utf-8")


def section(heading: str) -> str:
    text = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    assert text, heading
    return text


def table(heading: str) -> dict[str, list[str]]:
    """First cell, without its quotes -> the other cells."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")][2:]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {first.strip(" `"): rest for first, *rest in found}
