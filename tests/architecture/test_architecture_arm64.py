"""Native code that no x86 processor is needed for: the portable kernels, and all below the bindings, compile for arm64."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(str(path) for path in (ROOT / "csrc").rglob("*.cpp") if not path.name.endswith("bindings.cpp"))
CROSS_COMPILER = "aarch64-linux-gnu-g++"


def arm64_compiler() -> list[str]:
    if shutil.which(CROSS_COMPILER):
        return [CROSS_COMPILER]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu"]
    pytest.skip(f"needs hardware: a compiler for arm64 ({CROSS_COMPILER}, or pip install ziglang)")


@pytest.mark.slow
def test_native_code_compiles_for_arm64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = arm64_compiler()
    monkeypatch.setenv("ZIG_LOCAL_CACHE_DIR", str(tmp_path))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-DCOREKIT_LEVEL=portable", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'corekit/api/include'}"]
    for source in SOURCES:
        ran = subprocess.run([*compiler, *flags, "-c", source, "-o", str(tmp_path / "object.o")], capture_output=True, text=True, timeout=240)
        assert ran.returncode == 0, f"{source}\n{ran.stderr[-4000:]}"
