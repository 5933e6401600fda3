"""Options of parts: a frozen dataclass becomes checked values, with every fault at once and the key as the user wrote it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from corekit.api import API_VERSION, Provider
from corekit.compose.catalog import Candidate
from corekit.compose.config import load
from corekit.compose.discovery import Plugin
from corekit.compose.errors import ConfigError
from corekit.compose.options import read_options
from corekit.compose.problems import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    name: str
    port: Annotated[int, Field(ge=0, le=9)] = 8
    rate: float = 0.5
    keys: tuple[str, ...] = ()
    tables: tuple[tuple[int, ...], ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    mode: Literal["fast", "slow"] = "fast"
    on: bool = True
    maybe: str | None = None
    token: Annotated[str, Field(min_length=3)] = field(default="none", metadata={"secret": True})
    tokens: tuple[str, ...] = field(default=(), metadata={"secret": True})
    by_name: dict[str, str] = field(default_factory=dict, metadata={"secret": True})
    model_config: str = "a name that pydantic keeps for itself"

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("name must not be 'bad'")


def place(path: Path) -> str:
    return ".".join(map(str, ("[x.options]", *path)))


def read(raw: dict[str, Any], declared: type | None = Options, environ: dict[str, str] | None = None) -> Any:
    provider: Provider[Any] = Provider(name="part", api=API_VERSION, summary="", build=lambda context, options: None, options=declared)
    candidate = Candidate(slot="sampler", provider=provider, plugin=Plugin(distribution="dist", version="1", entry="e", module="m"))
    return read_options(candidate, raw, place, environ or {})


def test_values_and_defaults() -> None:
    read_value = read({"name": "a", "keys": ["x"], "tables": [[1], [2, 3]], "rate": 1, "on": False, "labels": {"a": "b"}, "model_config": "mine"})
    assert read_value == Options(name="a", keys=("x",), tables=((1,), (2, 3)), rate=1.0, on=False, labels={"a": "b"}, model_config="mine")
    assert read({"name": "a"}) == Options(name="a")


def test_all_faults_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read({"prot": 1, "port": 10, "rate": "x", "keys": ["a", 1], "mode": "fats", "on": 0, "maybe": 3, "labels": {"a": 1}})
    text = "\n".join(caught.value.problems)
    for part in (
        "[x.options].prot: unknown key. Did you mean 'port'?",
        "[x.options].port: must be an integer from 0 to 9, got 10",
        "[x.options].rate: must be a number, got 'x'",
        "[x.options].keys.1: must be a text, got 1",
        "[x.options].mode: must be one of 'fast', 'slow', got 'fats'. Did you mean 'fast'?",
        "[x.options].on: must be true or false, got 0",
        "[x.options].maybe: must be a text, got 3",
        "[x.options].labels.a",
        "[x.options].name: is missing",
    ):
        assert part in text
    assert len(caught.value.problems) == 9


def test_secrets_are_not_in_sentences() -> None:
    with pytest.raises(ConfigError) as caught:
        read({"name": "a", "token": "p4", "tokens": "p4"})
    assert list(caught.value.problems) == [
        "[x.options].token: must be a text, got a value that is not shown",
        "[x.options].tokens: must be a list (each a text), got a value that is not shown",
    ]
    with pytest.raises(ConfigError) as caught:
        read({"name": "a", "tokens": ["env:P", 5432], "token": ["p4"]}, environ={"P": "p4"})
    assert "p4" not in str(caught.value)
    assert "5432" not in str(caught.value)


def test_what_the_dataclass_itself_refuses() -> None:
    with pytest.raises(ConfigError, match=r"\[x.options\]: part from dist 1: name must not be 'bad'"):
        read({"name": "bad"})


def test_a_part_without_options_takes_none() -> None:
    assert read({}, None) is None
    with pytest.raises(ConfigError, match=r"\[x.options\]\.a: part from dist 1 takes no options"):
        read({"a": 1}, None)


def test_variables() -> None:
    environ = {"SECRET": "0123", "PORT": "7"}
    assert read({"name": "env:SECRET", "port": "env:PORT", "keys": ["env:SECRET", "b"]}, environ=environ) == Options(name="0123", port=7, keys=("0123", "b"))


def test_missing_variables_are_faults_among_the_others() -> None:
    with pytest.raises(ConfigError) as caught:
        read({"name": "env:NOBODY", "port": "env:NOTHING", "rate": "x"})
    assert list(caught.value.problems) == [
        "[x.options].name: 'env:NOBODY': the variable NOBODY is not set",
        "[x.options].port: 'env:NOTHING': the variable NOTHING is not set",
        "[x.options].rate: must be a number, got 'x'",
    ]


def test_missing_variables_do_not_hide_what_the_dataclass_refuses() -> None:
    with pytest.raises(ConfigError) as caught:
        read({"name": "bad", "keys": ["env:NOBODY"]})
    assert list(caught.value.problems) == [
        "[x.options].keys.0: 'env:NOBODY': the variable NOBODY is not set",
        "[x.options]: part from dist 1: name must not be 'bad'",
    ]
    with pytest.raises(ConfigError) as caught:
        read({"name": "env:NOBODY"})
    assert list(caught.value.problems) == ["[x.options].name: 'env:NOBODY': the variable NOBODY is not set"]
    with pytest.raises(ConfigError, match=r"^\[x\.options\]\.port: 'env:LONG': an integer may have 300 digits at most"):
        read({"name": "a", "port": "env:LONG"}, environ={"LONG": "9" * 5000})


def test_a_type_that_is_no_dataclass_is_the_plugins_fault() -> None:
    with pytest.raises(ConfigError, match="fault of the plugin"):
        read({}, int)


def test_secrets_of_variables_are_not_in_the_configuration() -> None:
    config = load(given={"frontend": [{"use": "openai-http", "options": {"api_keys": ["env:SECRET"]}}]}, environ={"SECRET": "0123"})
    assert "0123" not in str(config)


def test_secrets_from_files(tmp_path: FilePath) -> None:
    file = tmp_path / "token"
    file.write_text("  hunter2\n")
    file.chmod(0o640)
    assert read(
        {"name": "file:x", "token": f"file:{file}", "tokens": [f"file:{file}", "env:T"], "by_name": {"a": f"file:{file}"}}, environ={"T": "file:t"}
    ) == Options(name="file:x", token="hunter2", tokens=("hunter2", "file:t"), by_name={"a": "hunter2"})
    file.write_text("env:T")
    assert read({"name": "a", "token": f"file:{file}"}, environ={"T": "t"}).token == "env:T"


def test_files_that_are_no_secret(tmp_path: FilePath) -> None:
    open_to_all, empty, large, bytes_ = (tmp_path / name for name in ("open", "empty", "large", "bytes"))
    open_to_all.write_text("hunter2")
    open_to_all.chmod(0o666)
    empty.write_text(" \n")
    large.write_text("h" * 65537)
    bytes_.write_bytes(b"\xff")
    for path, reason in (
        (open_to_all, "everybody may write this file"),
        (empty, "the file is empty"),
        (large, "the file is larger than 65536 bytes"),
        (bytes_, "the file is not UTF-8 text"),
        (tmp_path, "the file cannot be read: Is a directory"),
        ("/dev/null", "this is not a file"),
        (tmp_path / "none", "the file cannot be read: No such file or directory"),
    ):
        with pytest.raises(ConfigError) as caught:
            read({"name": "a", "by_name": {"k": f"file:{path}"}})
        assert f"[x.options].by_name.k: 'file:{path}': {reason}" in str(caught.value)
        assert "hunter2" not in str(caught.value)
