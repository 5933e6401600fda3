"""Importing the contract, an entry-point module or the command line stays light: neither torch nor transformers comes along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tomli

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers")

_project = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LIGHT = sorted({"corekit", "corekit.api", "corekit.cli", "corekit.compose.discovery", *_project["entry-points"]["corekit"].values()})

PROBE = """
import sys, {module}
heavy = [name for name in {heavy} if name in sys.modules]
sys.exit(f"importing {module} imports {{heavy}}" if heavy else 0)
"""


def probe(module: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROBE.format(module=module, heavy=HEAVY)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", LIGHT)
def test_importing_is_light(module: str) -> None:
    done = probe(module)
    assert done.returncode == 0, done.stderr


def test_the_probe_sees_a_heavy_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "heavy_module.py").write_text("import torch")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert "importing heavy_module imports ['torch']" in probe("heavy_module").stderr


def test_every_public_name_of_corekit_is_lazy_and_there() -> None:
    code = "import corekit; missing = [n for n in corekit.__all__ if getattr(corekit, n, None) is None]; assert not missing, missing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
