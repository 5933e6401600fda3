"""`corekit config schema` prints the JSON schema, with the parts of modules that a file imports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from corekit.cli.config import schema

MODULE = """
from dataclasses import dataclass
from corekit.api import Provider, hookimpl

@dataclass(frozen=True)
class Options:
    depth: int = 1
    \"\"\"How deep.\"\"\"

@hookimpl
def corekit_register_samplers():
    return [Provider(name="deep", api=1, summary="draws deep", build=lambda context, options: None, options=Options)]
"""


def test_the_schema_names_the_parts_of_imported_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep_sampler.py").write_text(MODULE)
    (tmp_path / "corekit.toml").write_text('[plugins]\nimport = ["deep_sampler"]\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    plain, with_file = (CliRunner().invoke(schema, arguments) for arguments in ([], [str(tmp_path / "corekit.toml")]))
    assert plain.exit_code == with_file.exit_code == 0, with_file.output
    written = json.loads(with_file.output)
    assert "deep" in written["properties"]["sampler"]["properties"]["use"]["anyOf"][0]["enum"]
    depth = written["definitions"]["sampler.deep_sampler:deep"]["properties"]["depth"]
    assert (depth["description"], depth["default"]) == ("How deep.", 1)
    assert "deep" not in plain.output


ODD = """
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from corekit.api import Provider, hookimpl

class Colour(Enum):
    RED = "red"

def broken():
    raise OSError("no such disk")

@dataclass(frozen=True, kw_only=True)
class Options:
    folder: Path = Path("here")
    most: float = float("inf")
    colour: Colour = Colour.RED
    mark: bytes = b"\\xff"
    rest: list[int] = field(default_factory=broken)
    needed: int

@hookimpl
def corekit_register_samplers():
    return [Provider(name="odd", api=1, summary="odd", build=lambda context, options: None, options=Options)]
"""


def test_defaults_that_json_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_sampler.py").write_text(ODD)
    (tmp_path / "corekit.toml").write_text('[plugins]\nimport = ["odd_sampler"]\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(schema, [str(tmp_path / "corekit.toml")])
    assert done.exit_code == 0, done.output
    options = json.loads(done.output)["definitions"]["sampler.odd_sampler:odd"]
    defaults = {name: found.get("default") for name, found in options["properties"].items()}
    assert defaults == {"folder": "here", "most": "inf", "colour": "red", "mark": "_w==", "rest": None, "needed": None}
    assert options["required"] == ["needed"]


def test_a_file_that_is_wrong_is_reported(tmp_path: Path) -> None:
    (tmp_path / "corekit.toml").write_text("[scheduler]\nmax_num_seqs = 0\n")
    done = CliRunner().invoke(schema, [str(tmp_path / "corekit.toml")])
    assert done.exit_code == 3
    assert "max_num_seqs: must be an integer from 1 to 65536, got 0" in done.output
