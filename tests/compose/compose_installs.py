"""Real distributions in a folder on the path: metadata, entry points and a module, as pip would leave them."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[..., Path]

PLUGIN = """
from corekit.api import API_VERSION, Provider, hookimpl

@hookimpl
def corekit_register_{hook}():
    return [Provider(name={name!r}, api={api}, summary="a part", build=lambda context, options: object())]
"""


def plugin(hook: str, name: str, *, api: str = "API_VERSION") -> str:
    """The text of a module that registers one provider."""
    return PLUGIN.format(hook=hook, name=name, api=api)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """install(distribution, module=text, version=..., entry=..., folder=...) -> the folder that is now on the path."""
    added: list[str] = []

    def make(
        distribution: str, module: str | None, *, version: str = "1.0", entry: str = "part", folder: str = "site", entry_points: str | None = None
    ) -> Path:
        site = tmp_path / folder
        name = distribution.replace("-", "_")
        metadata = site / f"{name}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(f"[corekit]\n{entry} = {name}_plugin\n" if entry_points is None else entry_points)
        if module is not None:
            (site / f"{name}_plugin.py").write_text(textwrap.dedent(module))
            added.append(f"{name}_plugin")
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))
        return site

    yield make
    for name in added:
        sys.modules.pop(name, None)
