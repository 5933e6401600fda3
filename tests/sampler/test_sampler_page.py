"""The example of docs/slots/sampler.md and its kit, as they stand there."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tomli
from kit_mutants import breaks, laws

from corekit.compose.config import load

PAGE = (Path(__file__).parents[2] / "docs/slots/sampler.md").read_text("utf-8")


def test_the_example_passes_its_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
    assert list(files) == ["plain_sampler.py", "plain.py", "corekit.toml", "test_plain.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    kit = import_module("test_plain").TestPlain()
    assert load(given=tomli.loads(files["corekit.toml"]))
    assert [provider.name for provider in import_module("plain").corekit_register_samplers()] == ["plain"]
    assert not [message for law in laws(kit) if (message := breaks(kit, law))]
