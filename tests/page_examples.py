"""The examples of a slot's page as files: each code block that stands below a line "`name.py`:" is that file. Knows pages and kits."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tomli
from kit_mutants import breaks, laws

from corekit.compose.config import load
from corekit.testing import Kit

DOCS = Path(__file__).resolve().parents[1] / "docs"
FILE = re.compile(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def check_examples(slot: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of docs/slots/<slot>.md, in folder: the part passes the kit of its test file, and the TOML is a configuration."""
    files = dict(FILE.findall((DOCS / "slots" / f"{slot}.md").read_text("utf-8")))
    monkeypatch.syspath_prepend(folder)
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    (test,) = (name.removesuffix(".py") for name in files if name.startswith("test_"))
    (kit,) = (made for made in vars(import_module(test)).values() if isinstance(made, type) and issubclass(made, Kit) and made.__module__ == test)
    assert not [f"{law}: {message}" for law in laws(kit()) if (message := breaks(kit(), law))]
    for name, text in files.items():
        if name.endswith(".toml"):
            load(given=tomli.loads(text))
