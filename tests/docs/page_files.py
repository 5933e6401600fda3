"""The files that a page shows: a code block whose paragraph before ends with the file's name in a code span and a colon."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def files(page: str) -> dict[str, str]:
    text = (DOCS / page).read_text("utf-8")
    found = re.findall(r"`([\w/.-]+\.\w+)`:\n\n(?:<!--[^>]*-->\n\n)?```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(found) == len(dict(found)), f"{page} shows a file twice"
    return dict(found)


def write(page: str, folder: Path) -> Path:
    """Leave them in a folder, as a reader would."""
    for name, content in files(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, "utf-8")
    return folder
