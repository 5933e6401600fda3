"""The examples of the Python page run as they stand, on the demo model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from page_files import DOCS

BLOCKS = re.findall(r"^```python\n(.*?)^```$", (DOCS / "python.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_the_examples_of_the_page_answer(block: str, capsys: pytest.CaptureFixture[str], demo_source: object) -> None:
    names: dict[str, Any] = {"__name__": "python_md"}
    exec(compile(block, "python.md", "exec"), names)
    main: Callable[[], Coroutine[Any, Any, None]] | None = names.get("main")
    if main is not None:
        asyncio.run(main())
    assert "Paris" in capsys.readouterr().out
