"""Every command line of corekit on a page is one that corekit takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from page_files import DOCS

from corekit.cli import main

PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((DOCS.parent / "examples").glob("*/README.md"))]


def commands() -> list[tuple[str, str]]:
    """(page, command line), without what a shell does around it."""
    found = []
    for path in PAGES:
        for block in re.findall(r"^```(?:sh)?\n(.*?)^```$", path.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if match := re.match(r"(?:\w+=\S* )*(?:.* && )?corekit( [a-z].*)?$", re.sub(r"\s+(#.*|> \S+)$", "", line)):
                    found.append((path.name, match[0].rpartition("corekit")[2] if " && " in match[0] else (match[1] or "")))
    return found


def parse(line: str) -> None:
    """Raises UsageError for what no verb takes."""
    command: click.Command = main
    words = shlex.split(line)
    context = click.Context(main, info_name="corekit")
    while isinstance(command, click.Group):
        if "list" in command.list_commands(context) and (not words or words[0] not in command.list_commands(context)):
            words = ["list", *words]  # `corekit plugins` alone
        name, command, words = command.resolve_command(context, words)  # type: ignore[assignment]
    command.make_context(name, words)


@pytest.mark.parametrize(("page", "line"), [pytest.param(*found, id=" ".join(found)) for found in dict.fromkeys(commands())])
def test_the_command_is_one_that_corekit_takes(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in re.findall(r"[\w-]+\.(?:toml|jsonl?|csv)", line):
        (tmp_path / file).touch()
    parse(line)


def test_the_commands_are_found_and_a_wrong_one_is_seen() -> None:
    assert len(commands()) > 30
    with pytest.raises(click.UsageError, match="No such option"):
        parse("serve --prot 8000")
