"""The templates of `corekit plugins new`, and how a package is written from them. Knows text and files; no part of corekit.

A template is a plain file with `${...}` in it. Those of a slot lie in the folder of its name, those of all other packages in `common`.
"""

from __future__ import annotations

import keyword
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from types import MappingProxyType

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MAX_NAME = 60
PREFIX = "corekit-"
FILES: Mapping[str, str] = MappingProxyType(
    {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        "${package}/__init__.py": "__init__.py",
        "${package}/part.py": "part.py",
        "tests/test_${package}.py": "test.py",
    }
)
"""File of the package -> its template."""


class ScaffoldError(Exception):
    """The package cannot be written as asked; nothing was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What a package and its parts are called, all from one name."""

    distribution: str
    slot: str

    @property
    def module(self) -> str:
        return self.distribution.replace("-", "_")

    @property
    def provider(self) -> str:
        """What TOML will say: nobody repeats `corekit-` there."""
        return self.distribution.removeprefix(PREFIX)

    @property
    def class_name(self) -> str:
        return "".join(word.capitalize() for word in self.provider.split("-"))


def slots() -> list[str]:
    """Those that have templates."""
    return sorted(entry.name for entry in _templates().iterdir() if entry.is_dir() and entry.name not in ("common", "__pycache__"))


def write_package(package: Package, into: Path, *, api: int) -> Path:
    """Write it as a new folder below `into`, whole or not at all, and return that folder. Raises ScaffoldError."""
    folder = into / package.distribution
    if fault := next(_faults(package, into, folder, slots()), None):
        raise ScaffoldError(fault)
    draft = into / f".{package.distribution}-{os.getpid()}"
    try:
        draft.mkdir()
        try:
            for name, text in render(package, api=api).items():
                file = draft / name
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, "utf-8")
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise ScaffoldError(f"{folder} cannot be written: {error.strerror or error}. Choose another folder with --into") from error
    return folder


def render(package: Package, *, api: int) -> dict[str, str]:
    """File name -> text."""
    words = {
        "distribution": package.distribution,
        "package": package.module,
        "provider": package.provider,
        "Class": package.class_name,
        "slot": package.slot,
        "kit": "".join(word.capitalize() for word in package.slot.split("_")) + "Kit",
        "api": str(api),
    }
    words["use"] = _filled("use.toml", words).rstrip()
    return {Template(name).substitute(words): _filled(source, words) for name, source in FILES.items()}


def _faults(package: Package, into: Path, folder: Path, known: Collection[str]) -> Iterator[str]:
    """What stands in the way, the first of it first."""
    name, module = package.distribution, package.module
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        yield f"{name!r} is no name for a package: small letters, digits and single hyphens, a letter first, at most {MAX_NAME} characters, as in corekit-lifo"
    if not package.class_name.isidentifier() or keyword.iskeyword(package.class_name):
        yield f"{name!r}: its class would be called {package.class_name}, which is no name for one in Python. Choose another name"
    if package.slot not in known:
        yield f"--slot {package.slot}: there is no template for that slot. There are templates for: {', '.join(known)}"
    elif re.search(rf"^from .*\b{package.class_name}\b", render(package, api=1)[f"{module}/part.py"], re.MULTILINE):
        yield f"{name!r}: its class would be called {package.class_name}, as one that it imports. Choose another name"
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("corekit", "test", "tests"):
        yield f"{name!r}: its module {module} would hide one that Python or corekit needs. Choose another name, such as {PREFIX}{name}"
    if os.path.lexists(into) and not into.is_dir():
        yield f"--into {into} is no folder. Choose another"
    if not into.is_dir():
        yield f"--into {into}: there is no such folder. Create it first: mkdir -p {shlex.quote(str(into))}"
    if os.path.lexists(folder):
        yield f"{folder} is there already, and nothing is overwritten. Choose another name, or another folder with --into"
    if (there := find_spec(module)) is not None:
        yield f"{name!r}: a module {module} is installed already ({there.origin}). Choose another name"


def _templates() -> resources.abc.Traversable:
    return resources.files(__name__) / "templates"


def _filled(source: str, words: Mapping[str, str]) -> str:
    own = _templates() / words["slot"] / f"{source}.template"
    template = own if own.is_file() else _templates() / "common" / f"{source}.template"
    return Template(template.read_text("utf-8")).substitute(words)
