"""The documentation is a site that builds without a warning, and a dead link is one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from page_files import DOCS

pytestmark = pytest.mark.slow


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("sphinx", reason='the extra "docs" is not installed')
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", str(docs), str(site)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_the_site_builds(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "slots" / "scheduler_policy.html").is_file()
    assert "http" not in (tmp_path / "site" / "index.html").read_text("utf-8").partition("<head>")[2].partition("</head>")[0], "the page loads from elsewhere"


@pytest.mark.parametrize("fault", ["[x](no-such-page.md)", "[x](index.md#no-such-heading)", "# Another\n\n#### Level"])
def test_a_fault_is_seen(fault: str, tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs" / "python.md").open("a") as opened:
        opened.write(f"\n{fault}\n")
    done = build(tmp_path / "docs", tmp_path / "site")
    assert done.returncode != 0
    assert "python.md" in done.stderr
