"""Configuration: order of layers, origins, every explicit value honoured, every fault reported at once and where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from corekit.compose.config import Config, load, place
from corekit.compose.errors import ConfigError
from corekit.compose.show import show
from corekit.compose.surroundings import cache_dir, check_memory
from corekit.compose.tables import Tables
from corekit.weights import DEMO_SOURCE


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "corekit.toml"
    file.write_text(text)
    return file


def problems(*args: object, **kwargs: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)  # type: ignore[arg-type]
    return list(caught.value.problems)


def test_nothing_is_the_demo_model() -> None:
    config = load()
    assert config.model.source == DEMO_SOURCE
    assert [frontend.use for frontend in config.frontend] == ["openai-http"]
    assert config.origin("model", "source") == "default"


def test_a_source_alone_is_a_file(tmp_path: Path) -> None:
    assert load(write(tmp_path, '[model]\nsource = "x"')).model.source == "x"


def test_order_of_layers(tmp_path: Path) -> None:
    """Each layer wins over those before it, and the origin says so."""
    file = write(tmp_path, "[scheduler]\nmax_num_seqs = 1\n[engine]\nthreads = 1\nseed = 1\nmax_in_flight = 1\n")
    environ = {"COREKIT__ENGINE__THREADS": "2", "COREKIT__ENGINE__SEED": "2", "COREKIT__ENGINE__MAX_IN_FLIGHT": "2", "OTHER": "x"}
    config = load(file, environ=environ, overrides=["engine.seed=3", "engine.max_in_flight=3"], given={"engine": {"max_in_flight": 4}})
    engine = config.engine
    assert (config.scheduler.max_num_seqs, engine.threads, engine.seed, engine.max_in_flight) == (1, 2, 3, 4)
    origins = [config.origin("scheduler", "max_num_seqs"), *(config.origin("engine", key) for key in ("threads", "seed", "max_in_flight", "device"))]
    assert origins == [str(file), "COREKIT__ENGINE__THREADS", "--set engine.seed", "Python argument", "default"]


def test_falsy_values_are_honoured_and_overridden_both_ways(tmp_path: Path) -> None:
    text = '[model]\nallow_unpinned = false\n[scheduler]\nwatermark = 0\n[block_allocator]\nstack = ["free-list"]\n[engine]\nseed = 0\nenforce_eager = true\n'
    file = write(tmp_path, text)
    config = load(file)
    assert config.scheduler.watermark == 0
    assert config.block_allocator.stack == ("free-list",)
    assert config.is_given("engine", "seed")
    assert load(file, overrides=["engine.enforce_eager=false"]).engine.enforce_eager is False
    assert load(file, environ={"COREKIT__ENGINE__ENFORCE_EAGER": "false"}).engine.enforce_eager is False
    assert load(file, environ={"COREKIT__MODEL__ALLOW_UNPINNED": "true"}).model.allow_unpinned is True
    assert load(file, overrides=["model.allow_unpinned=true"], given={"model": {"allow_unpinned": False}}).model.allow_unpinned is False
    assert load(write(tmp_path, "frontend = []")).frontend == ()
    assert load(given={"block_allocator": {"options": {"free-list": {"stop": [], "on": False}}}}).block_allocator.options["free-list"] == {
        "stop": [],
        "on": False,
    }


def test_all_faults_at_once_with_file_table_and_key(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [scheduler]
        max_num_seq = 64
        watermark = "0.1"
        [shceduler]
        a = 1
        [block_allocator]
        block_size = 0
        kv_dtype = "flaot32"
        stack = ["free-list", 3]
        [engine]
        seed = true
        [[frontend]]
        options = {}
        """,
    )
    found = problems(file, overrides=["model.allow_unpinned=1"])
    assert sorted(found) == sorted(
        [
            f"{file}: [scheduler] max_num_seq: unknown key. Did you mean 'max_num_seqs'?",
            f"{file}: [scheduler] watermark: must be a number from 0 to 0.5, got '0.1'",
            f"{file}: [shceduler]: unknown table. Did you mean 'scheduler'?",
            f"{file}: [block_allocator] block_size: must be an integer from 1 to 1024, got 0",
            f"{file}: [block_allocator] kv_dtype: must be one of 'auto', 'float32', 'bfloat16', 'float16', 'float64', got 'flaot32'. Did you mean 'float32'?",
            f"{file}: [block_allocator] stack[1]: must be a text, got 3",
            f"{file}: [engine] seed: must be an integer from 0 to 9223372036854775807, got true",
            f"{file}: [[frontend]] number 1, use: is missing",
            "--set model.allow_unpinned: must be true or false, got 1",
        ]
    )


def test_an_integer_where_a_float_is_expected_is_fine_and_not_the_reverse() -> None:
    assert load(given={"scheduler": {"watermark": 0}}).scheduler.watermark == 0.0
    assert "must be an integer" in problems(given={"scheduler": {"max_num_seqs": 2.0}})[0]
    assert "must be a number" in problems(given={"scheduler": {"watermark": float("nan")}})[0]


@pytest.mark.parametrize(("written", "tokens"), [("4k", 4096), ("4K", 4096), (4096, 4096), (0, 0)])
def test_context_lengths(written: object, tokens: int) -> None:
    assert load(given={"model": {"max_model_len": written}}).model.max_model_len == tokens


@pytest.mark.parametrize("written", ["4x", "k", "-1k", -1, 2**25, 4.0, "99999999k"])
def test_no_context_lengths(written: object) -> None:
    assert "max_model_len" in problems(given={"model": {"max_model_len": written}})[0]


def test_every_number_has_a_lower_and_an_upper_bound() -> None:
    schema = Tables.model_json_schema()
    numbers = 0
    for name, table in schema["$defs"].items():
        for key, value in table["properties"].items():
            if value.get("type") in ("integer", "number"):
                numbers += 1
                assert {"minimum", "maximum"} <= value.keys(), f"{name}.{key}"
    assert numbers > 12


@pytest.mark.parametrize(
    "given",
    [
        {"executor": {"tensor_parallel_size": 2}},
        {"tool_format": [{"use": "x"}]},
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(given: dict[str, object]) -> None:
    (problem,) = problems(given=given)
    assert next(iter(given)) in problem
    assert "yet" in problem


def test_keys_of_other_engines_point_to_ours() -> None:
    assert "[block_allocator] memory_utilization" in problems(given={"model": {"gpu_memory_utilization": 0.5}})[0]
    assert "[scheduler] max_num_seqs" in problems(given={"engine": {"max_num_seqs": 5}})[0]
    assert "lru-prefix" in problems(given={"enable_prefix_caching": True})[0]


@pytest.mark.parametrize("text", ["[model\nsource = 1", "a = ", "[a]\n[a]\n"])
def test_bad_toml_names_file_and_line(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    (problem,) = problems(file)
    assert problem.startswith(f"{file}: not valid TOML: ")
    assert "line" in problem or "end of document" in problem


NINES = "9" * 5000
TOO_LONG = "an integer may have 300 digits at most, and this one has more. Write a smaller one"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (f"[block_allocator]\nnum_blocks = {NINES}", "[block_allocator] num_blocks"),
        (f"[block_allocator]\nnum_blocks = -{'9_' * 400}9", "[block_allocator] num_blocks"),
        (f"[block_allocator]\nhash_seed = 0x{'f' * 5000}", "[block_allocator] hash_seed"),
        (f"# {NINES}\n[engine]\nseed = 1\n[block_allocator.options.x]\na = 'x{NINES}'\nb.c = [1, {NINES}]", "[block_allocator.options.x.b] c[1]"),
        (f"[[frontend]]\nuse = 'x'\noptions.port = {NINES}", "[[frontend]] number 1, options.port"),
    ],
)
def test_endless_integers_are_refused_by_file_table_and_key(tmp_path: Path, text: str, where: str) -> None:
    """Python reads and writes none of some thousands of digits, and says of itself neither where it stood nor what is allowed."""
    file = write(tmp_path, text)
    assert problems(file, overrides=["engine.seed=1"]) == [f"{file}: {where}: {TOO_LONG}"]


def test_endless_integers_are_refused_wherever_they_come_from(tmp_path: Path) -> None:
    assert problems(overrides=[f"engine.seed={NINES}"]) == [f"--set engine.seed: {TOO_LONG}"]
    assert problems(environ={"COREKIT__ENGINE__SEED": f"0x{'f' * 5000}"}) == [f"COREKIT__ENGINE__SEED: [engine] seed: {TOO_LONG}"]
    assert problems(given={"seed": 10**300}) == [f"Python argument: [engine] seed: {TOO_LONG}"]
    assert problems(write(tmp_path, f"a = {NINES}\nb = ["))[0].startswith(f"{tmp_path / 'corekit.toml'}: not valid TOML: ")
    assert "has no element" in problems(overrides=[f"frontend.{NINES}.use=a"])[0]
    (long,) = problems(given={"seed": 10**299})
    assert "must be an integer from 0 to 9223372036854775807, got 1000" in long and len(long) < 200


def test_long_digits_that_are_no_integer_are_left_alone(tmp_path: Path) -> None:
    text = f"# {NINES}\n[model]\nsource = '{NINES[:4000]}'\n[scheduler]\nwatermark = 0.1{NINES}"
    config = load(write(tmp_path, text))
    assert (config.model.source, config.scheduler.watermark) == (NINES[:4000], 0.2)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in problems(tmp_path / "none.toml")[0]
    assert "directory" in problems(tmp_path)[0]
    (tmp_path / "latin.toml").write_bytes(b'a = "\xe4"')
    assert "UTF-8" in problems(tmp_path / "latin.toml")[0]


@pytest.mark.parametrize("override", ["scheduler", "=3", "scheduler.=3", ".a=3", "model.source.x=1", "frontend.9.use=a", "frontend.port=1"])
def test_overrides_without_sense(override: str) -> None:
    assert override.partition("=")[0] in problems(given={}, overrides=["model.source=a", override])[0]


def test_overrides_reach_into_lists_and_keep_text() -> None:
    config = load(overrides=["frontend.openai-http.options.port=9", "frontend.0.options.host=::1", "model.source=a=b", 'model.dtype="auto"'])
    assert config.frontend[0].options == {"port": 9, "host": "::1"}
    assert config.model.source == "a=b"
    assert config.origin("frontend", 0, "options", "port") == "--set frontend.openai-http.options.port"


def test_environment_values_are_toml_values_or_text() -> None:
    environ = {
        "COREKIT__PLUGINS__REQUIRE": '["a", "b"]',
        "COREKIT__MODEL__SOURCE": "some/where",
        "COREKIT__SCHEDULER__WATERMARK": "0.25",
        "COREKIT__BLOCK_ALLOCATOR__OPTIONS__CPU_SWAP__SWAP_SPACE_GIB": "4",
        "COREKIT__FRONTEND__0__OPTIONS__PORT": "1",
    }
    config = load(environ=environ)
    assert config.plugins.require == ("a", "b")
    assert config.model.source == "some/where"
    assert config.block_allocator.options == {"cpu-swap": {"swap_space_gib": 4}}
    assert config.frontend[0].options == {"port": 1}
    assert "COREKIT__SCHEDULER__MAX_NUM_SEQ: [scheduler] max_num_seq: unknown key" in problems(environ={"COREKIT__SCHEDULER__MAX_NUM_SEQ": "1"})[0]
    assert "COREKIT__" in problems(environ={"COREKIT__SCHEDULER____X": "1"})[0]


def test_a_value_from_the_environment_cannot_smuggle_other_keys_in() -> None:
    assert load(environ={"COREKIT__MODEL__SOURCE": "1\n[engine]\nseed = 5"}).engine.seed == 0


def test_python_short_forms() -> None:
    config = load(given={"max_num_seqs": 3, "block_allocator.block_size": 8, "scheduler": {"watermark": 0}})
    assert (config.scheduler.max_num_seqs, config.block_allocator.block_size, config.scheduler.watermark) == (3, 8, 0)


def test_what_show_prints_is_the_same_configuration(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[model]\nsource = "tab\\t \\"q\\" \\u00e9"\n[block_allocator]\nstack=["a"]\n[block_allocator.options."odd key"]\nx = [1, "b", {c = 0.5}]\n'
        '[[frontend]]\nuse = "a"\noptions = {deep = {deeper = 1}}\n[[frontend]]\nuse = "b"\n[[observer]]\nuse = "o"\n[plugins]\nimport = ["m"]\n',
    )
    config = load(file, overrides=["scheduler.watermark=0"])
    text = "\n".join(show(config))
    again = Config.model_validate(tomli.loads(text))
    assert again.model_dump() == config.model_dump()
    assert next(line for line in text.splitlines() if line.startswith("watermark")).endswith("# --set scheduler.watermark")
    assert next(line for line in text.splitlines() if line.startswith("deeper")).endswith(f"# {file}")


def test_what_show_prints_of_nothing_is_not_refused_on_a_cpu() -> None:
    """A share of a GPU's memory is, when somebody gives it."""
    shown = Config.model_validate(tomli.loads("\n".join(show(load(given={"engine": {"device": "cpu"}})))))
    check_memory(shown, "cpu")
    assert shown.is_given("block_allocator", "block_size")
    given = load(given={"block_allocator": {"memory_utilization": 0.9}})
    assert "memory_utilization = 0.9 " in "\n".join(line for line in show(given) if not line.startswith("#"))


def test_show_of_no_frontends_is_no_frontends() -> None:
    config = load(given={"frontend": []})
    assert Config.model_validate(tomli.loads("\n".join(show(config)))).frontend == ()


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir({"COREKIT_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/corekit")
    monkeypatch.setenv("HOME", "/c")
    assert cache_dir({"XDG_CACHE_HOME": "not absolute"}) == Path("/c/.cache/corekit")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # as in a container that runs under a number without a name
    with pytest.raises(ConfigError, match=r"no home folder.*COREKIT_CACHE"):
        cache_dir({})


@pytest.mark.parametrize(
    ("path", "origin", "named"),
    [
        (("scheduler", "watermark"), None, "[scheduler] watermark"),
        (("scheduler", "watermark"), "f.toml", "f.toml: [scheduler] watermark"),
        (("scheduler", "watermark"), "--set scheduler.watermark", "--set scheduler.watermark"),
        (("shceduler",), None, "[shceduler]"),
        (("block_allocator", "stack", 1), None, "[block_allocator] stack[1]"),
        (("frontend", 0), None, "[[frontend]] number 1"),
        (("frontend", 1, "use"), None, "[[frontend]] number 2, use"),
        (("frontend", 0, "options", "api_keys", 2), "f.toml", "f.toml: [[frontend]] number 1, options.api_keys[2]"),
    ],
)
def test_how_a_place_is_named(path: tuple[str | int, ...], origin: str | None, named: str) -> None:
    assert place(path, origin) == named
