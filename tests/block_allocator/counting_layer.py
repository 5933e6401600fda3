"""The layer of docs/slots/block_allocator.md, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "slots" / "block_allocator.md"


def block(name: str) -> str:
    """The file of that name, as the page shows it."""
    (code,) = re.findall(rf"`{re.escape(name)}`:\n\n```\w+\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return str(code)


def example() -> Any:
    """`counting.py`, as a module."""
    module = ModuleType("counting")
    exec(compile(block("counting.py"), str(PAGE), "exec"), module.__dict__)
    return module


MODULE = example()
Counting, COUNTING = MODULE.Counting, MODULE.COUNTING
