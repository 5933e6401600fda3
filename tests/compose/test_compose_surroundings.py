"""What the machine decides: cores of a control group; dtype and packed weights by what is asked and what is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from corekit.compose import surroundings
from corekit.compose.config import Config, load
from corekit.compose.errors import ConfigError
from corekit.testing.memory_weights import MemoryWeights


def files(root: Path, texts: Mapping[str, str]) -> Path:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("membership", "groups", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 1),
        ("0::/gone\n", {"cpu.max": "300000 100000\n"}, 3),
        ("4:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "250000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 3),
        ("4:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, None),
        ("nonsense\n", {"cpu.max": "much\n"}, None),
        ("", {}, None),
    ],
)
def test_cores_of_a_control_group(tmp_path: Path, membership: str, groups: Mapping[str, str], cores: int | None) -> None:
    root = files(tmp_path / "cgroup", groups)
    assert surroundings.cores_of_group(root, files(tmp_path, {"membership": membership}) / "membership") == cores


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert surroundings.cores_of_group(tmp_path / "no", tmp_path / "nothing") is None


def test_many_more_threads_than_cores_are_a_slip() -> None:
    cores = surroundings.threads(load(environ={}, given={}))
    assert surroundings.threads(load(environ={}, given={"engine": {"threads": cores + 1}})) == cores + 1
    with pytest.raises(ConfigError, match=r"\[engine\] threads = 1024: this process may run on \d+ core"):
        surroundings.threads(load(environ={}, given={"engine": {"threads": 1024}}))
    with pytest.raises(ConfigError, match="threads"):
        load(environ={}, given={"engine": {"threads": 4096}})


def config(**model: object) -> Config:
    return load(environ={}, given={"model": model})


class Packed(MemoryWeights):
    """A source that has packed weights, as a GGUF file is."""

    stored_types: Mapping[str, str] = {}

    def stored_tensors(self) -> object:
        raise AssertionError("nothing is read to decide")


PLAIN, PACKED = MemoryWeights(weights={}), Packed(weights={})


@pytest.mark.parametrize(
    ("source", "asked", "wanted"),
    [
        (PLAIN, {}, "none"),
        (PACKED, {}, "stored"),
        (PACKED, {"dtype": "float32"}, "none"),
        (PACKED, {"dtype": "float32", "quantization": "stored"}, "stored"),
        (PACKED, {"quantization": "none"}, "none"),
        (PLAIN, {"quantization": "int8"}, "int8"),
    ],
)
def test_packed_weights_are_computed_on_unless_a_dtype_is_asked_for(source: MemoryWeights, asked: Mapping[str, object], wanted: str) -> None:
    assert surroundings.first_quantization(config(**asked), source) == wanted


class Computes:
    def __init__(self, quantization: str) -> None:
        self.quantization = quantization


def test_a_model_that_cannot_do_what_is_asked_is_named() -> None:
    assert surroundings.final_quantization(config(), Computes("stored"), "the provider x") == "stored"  # type: ignore[arg-type]
    assert surroundings.final_quantization(config(), object(), "the provider x") == "none"  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"quantization = 'int8': the provider x computes on 'none' weights here"):
        surroundings.final_quantization(config(quantization="int8"), object(), "the provider x")  # type: ignore[arg-type]


def test_a_cpu_computes_in_bfloat16_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    for can, wanted in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr("corekit.worker.pool.computes_bfloat16", lambda can=can: can)
        assert surroundings.first_dtype(config(), "cpu", PLAIN) == wanted
        assert surroundings.first_dtype(config(), "cpu", MemoryWeights()) == "float32"
        assert surroundings.first_dtype(config(dtype="float32"), "cpu", PLAIN) == "float32"
