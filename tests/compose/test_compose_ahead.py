"""PyTorch's native code can be loaded in a thread before Python imports it, and what it computes is the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import sys, threading
from pathlib import Path
from corekit.compose.ahead import load_ahead
load_ahead()
for thread in threading.enumerate():
    if thread.name == "corekit-load-ahead":
        thread.join()
assert "libtorch_cpu.so" in Path("/proc/self/maps").read_text()
assert "torch" not in sys.modules
import torch
torch.set_num_threads(2)
one = torch.arange(250_000, dtype=torch.float64).view(500, 500) / 250_000
print(float((one @ one.T).sum() - one.sum(0).square().sum()), torch.get_num_threads())
"""
BROKEN = """
import sys
sys.path.insert(0, sys.argv[1])
from corekit.compose.ahead import load_ahead
load_ahead()
print("on")
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs hardware: a linker as Linux has it")
def test_it_is_there_before_the_import_and_computes() -> None:
    difference, num_threads = run(LOADED).split()
    assert abs(float(difference)) < 1e-3
    assert num_threads == "2"


def test_an_installation_without_its_libraries_is_left_to_the_import(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    assert run(BROKEN, str(tmp_path)) == "on\n"
