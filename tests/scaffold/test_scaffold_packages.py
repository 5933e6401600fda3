"""Packages that `corekit plugins new` writes: whole or not at all, with names that work; each part obeys the laws of its kit."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tomli
from kit_mutants import breaks, laws

from corekit.api import API_VERSION, SLOTS, Provider
from corekit.compose.discovery import NAME
from corekit.scaffold import MAX_NAME, Package, ScaffoldError, render, slots, write_package
from corekit.testing.check import kit_of

ROOT = Path(__file__).parents[2]
STRICT = "B,C4,E,F,I,N,PIE,PLE,PT,RUF,S,SIM,T20,UP,W"


def package(slot: str, name: str = "") -> Package:
    return Package(distribution=name or f"corekit-new-{slot.replace('_', '-')}", slot=slot)


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_every_slot_with_a_kit_has_templates() -> None:
    assert slots() == sorted(slot.name for slot in SLOTS if kit_of(slot.name) is not None)
    assert set(slots()) == {slot.name for slot in SLOTS} - {"tool_format"}


@pytest.mark.parametrize("slot", slots())
def test_a_package_says_what_it_is(slot: str, tmp_path: Path) -> None:
    folder = write_package(package(slot), tmp_path, api=API_VERSION)
    module, provider = package(slot).module, package(slot).provider
    assert files(folder) == sorted(["README.md", "pyproject.toml", f"{module}/__init__.py", f"{module}/part.py", f"tests/test_{module}.py"])
    project = tomli.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == folder.name
    assert project["project"]["entry-points"]["corekit"] == {provider: module}
    assert project["project"]["optional-dependencies"]["test"] == ["corekit[testing]"]
    readme = (folder / "README.md").read_text()
    use = tomli.loads(readme.partition("```toml\n")[2].partition("```")[0])
    assert provider in str(use)
    assert not any("$" in (folder / name).read_text() for name in files(folder))


@pytest.mark.parametrize("slot", slots())
def test_a_new_part_obeys_its_kit(slot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = package(slot)
    folder = write_package(named, tmp_path, api=API_VERSION)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(folder / "tests"))
    try:
        before = "torch" in sys.modules
        provider = import_module(named.module).PROVIDER
        assert ("torch" in sys.modules) == before
        assert isinstance(provider, Provider)
        assert (provider.name, provider.api) == (named.provider, API_VERSION)
        part = getattr(import_module(f"test_{named.module}"), f"Test{named.class_name}")()
        assert part.provider is provider
        broken = {law: message for law in laws(part) if (message := breaks(part, law))}
        assert broken == {}
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in (named.module, f"test_{named.module}")]:
            del sys.modules[name]


@pytest.mark.slow
def test_new_packages_are_clean_typed_and_pass_under_pytest(tmp_path: Path) -> None:
    folders = [write_package(package(slot), tmp_path, api=API_VERSION) for slot in slots()]
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": path, "MYPYPATH": f"{ROOT}:{ROOT / 'plugins'}", "OMP_NUM_THREADS": "1"}

    def run(*command: str, cwd: Path = tmp_path) -> None:
        done = subprocess.run([sys.executable, "-m", *command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    run("ruff", "check", "--extend-select", STRICT, "--ignore", "S101,RUF012", ".")
    run("ruff", "format", "--check", ".")
    for folder, slot in zip(folders, slots(), strict=True):
        run("mypy", "--cache-dir", str(tmp_path / "mypy"), package(slot).module, f"tests/test_{package(slot).module}.py", cwd=folder)
    run("pytest", "-q", "-p", "no:cacheprovider", cwd=folders[slots().index("tokenizer")])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Corekit-Lifo", "is no name for a package"),
        ("corekit_lifo", "is no name for a package"),
        ("corekit--lifo", "is no name for a package"),
        ("2nd", "a letter first"),
        ("../lifo", "is no name for a package"),
        ("", "is no name for a package"),
        ("l" * (MAX_NAME + 1), f"at most {MAX_NAME} characters"),
        ("class", "its module class would hide one that Python or corekit needs. Choose another name, such as corekit-class"),
        ("json", "would hide"),
        ("corekit-2nd", "its class would be called 2nd, which is no name for one in Python"),
        ("corekit-none", "its class would be called None"),
        ("corekit", "would hide"),
        ("torch", "a module torch is installed already"),
    ],
)
def test_names_that_would_not_work(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ScaffoldError) as caught:
        write_package(Package(distribution=name, slot="sampler"), tmp_path, api=1)
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["l" * MAX_NAME, "corekit-lifo", "a", "my-2nd-part"])
def test_names_that_work(name: str, tmp_path: Path) -> None:
    named = Package(distribution=name, slot="sampler")
    assert NAME.fullmatch(named.provider)
    for text in render(named, api=1).values():
        assert "${" not in text


def test_a_class_that_would_hide_what_it_imports(tmp_path: Path) -> None:
    with pytest.raises(ScaffoldError, match="its class would be called Prompt, as one that it imports"):
        write_package(Package(distribution="corekit-prompt", slot="frontend"), tmp_path, api=1)
    assert write_package(Package(distribution="corekit-prompt", slot="observer"), tmp_path, api=1).is_dir()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "corekit-new-sampler"
    folder.mkdir()
    with pytest.raises(ScaffoldError, match="is there already, and nothing is overwritten"):
        write_package(package("sampler"), tmp_path, api=1)
    assert files(tmp_path) == []


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def full(self: Path, *arguments: object, **more: object) -> int:
        if self.name == "part.py":
            raise OSError(28, "No space left on device")
        return real(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ScaffoldError, match=r"cannot be written: No space left on device\. Choose another folder with --into$"):
        write_package(package("sampler"), tmp_path, api=1)
    assert list(tmp_path.iterdir()) == []


def test_folders_and_slots_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScaffoldError, match="there is no such folder"):
        write_package(package("sampler"), tmp_path / "nowhere", api=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ScaffoldError, match=r"file is no folder\. Choose another$"):
        write_package(package("sampler"), tmp_path / "file", api=1)
    for slot in ("tool_format", "nothing"):
        with pytest.raises(ScaffoldError, match=f"--slot {slot}: there is no template for that slot. There are templates for: attention_backend, "):
            write_package(package(slot), tmp_path, api=1)
