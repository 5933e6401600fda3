"""Help, configuration and plugins are there at once: nothing heavy is imported for them. And exit codes of bad usage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tomli
from cli_process import call, environment, write
from click.testing import CliRunner

from corekit import __version__
from corekit.cli import main

COUNT = """
import sys
from corekit.cli import main
try:
    main(sys.argv[2:])
except SystemExit as end:
    assert not end.code, end.code
print("imported:", [name for name in sys.argv[1].split(",") if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], "torch,transformers,numpy,pydantic,structlog,pluggy,corekit.compose.config"),
        (["--version"], "torch,transformers,numpy,pydantic,structlog,pluggy"),
        (["serve", "--help"], "torch,transformers,numpy,structlog,pydantic"),
        (["bench", "serve", "--help"], "torch,transformers,numpy,pydantic,matplotlib,msgspec"),
        (["config", "show"], "torch,transformers,numpy,corekit.engine.engine"),
        (["plugins"], "torch,transformers,numpy,corekit.engine.engine"),
    ],
)
def test_light(arguments: list[str], heavy: str) -> None:
    done = subprocess.run([sys.executable, "-c", COUNT, heavy, *arguments], capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported: []"


def invoke(*arguments: str, **environ: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, arguments, env=environ)
    return result.exit_code, result.stdout, result.stderr


def test_version_and_help() -> None:
    assert invoke("--version") == (0, f"corekit {__version__}\n", "")
    code, out, _ = invoke("--help")
    assert code == 0
    for verb in ("serve", "run", "chat", "check", "config", "plugins", "bench"):
        assert f"\n  {verb} " in out


@pytest.mark.parametrize("verb", ["serve", "run", "chat", "check", "plugins list", "config show", "config schema"])
def test_every_verb_explains_itself(verb: str) -> None:
    code, out, _ = invoke(*verb.split(), "--help")
    assert code == 0
    assert "--set TABLE.KEY=VALUE" in out


@pytest.mark.parametrize(
    "arguments", [["sevre"], ["serve", "--port", "70000"], ["serve", "--prot", "1"], ["run"], ["run", "x", "--temperature", "3"], ["serve", "a", "b"]]
)
def test_bad_usage_is_exit_code_2(arguments: list[str]) -> None:
    code, out, err = invoke(*arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serv"], "No such command 'serv'. Did you mean 'serve'?"),
        (["bench", "latenci"], "No such command 'latenci'. Did you mean 'latency'?"),
        (["config", "x"], "No such command 'x'. There are: schema, show."),
    ],
)
def test_a_misspelt_verb(arguments: list[str], said: str) -> None:
    code, _, err = invoke(*arguments)
    assert code == 2
    assert err.endswith(f"Error: {said}\n")


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "corekit", "--version"], capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"corekit {__version__}\n"), done.stderr


def test_config_show(tmp_path: Path) -> None:
    file = write(tmp_path, "[scheduler]\nmax_num_seqs = 5\nwatermark = 0\n")
    code, out, _ = invoke("config", "show", file, "--set", "engine.seed=0", COREKIT__SCHEDULER__WATERMARK="0.2")
    assert code == 0
    lines = {line.partition("#")[0].strip(): line.partition("#")[2].strip() for line in out.splitlines() if "=" in line}
    assert lines["max_num_seqs = 5"] == file
    assert lines["watermark = 0.2"] == "COREKIT__SCHEDULER__WATERMARK"
    assert lines["seed = 0"] == "--set engine.seed"
    assert lines["block_size = 16"] == "default"


def test_config_show_of_a_source_and_of_faults(tmp_path: Path) -> None:
    assert 'source = "org/name"' in invoke("config", "show", "org/name")[1]
    code, out, err = invoke("config", "show", write(tmp_path, "[scheduler]\nmax_num_seq = 5\n[engine]\nseed = -1\n"))
    assert (code, out) == (3, "")
    assert err.startswith("corekit: 2 problems in the configuration:\n")
    assert "Did you mean 'max_num_seqs'?" in err
    assert "Traceback" not in err


def test_config_show_hides_secrets(tmp_path: Path) -> None:
    """And a file made of what it prints is refused, not served without keys or with a key that everybody knows."""
    keys = 'api_keys = ["p4ssword", "env:VARIABLE"]\nkeys = {bob = "p4ssword2", al = "file:/k"}\nhost = "::1"\n'
    known = '[plugins]\nimport = ["corekit_openai_http"]\n[[frontend]]\nuse = "openai-http"\n[frontend.options]\n' + keys
    unknown = '[[frontend]]\nuse = "not-installed"\n[frontend.options]\n' + keys + '[block_allocator.options.lru]\ntoken = "p4ssword"\n'
    for text, host in ((known, "::1"), (unknown, "env:NOT_SHOWN")):
        code, out, _ = invoke("config", "show", write(tmp_path, text))
        assert code == 0
        assert "p4ssword" not in out
        options = tomli.loads(out)["frontend"][0]["options"]
        named = {"bob": "env:NOT_SHOWN", "al": "file:/k"}
        assert options == {"api_keys": ["env:NOT_SHOWN", "env:VARIABLE"], "keys": named, "host": host}
    code, _, err = invoke("check", write(tmp_path, known.replace('["p4ssword", "env:VARIABLE"]', '"p4ssword"')))
    assert code == 3
    assert "must be a list (each a text), got a value that is not shown" in err
    assert "p4ssword" not in err


def test_plugins_lists_everything_and_failures(tmp_path: Path) -> None:
    (tmp_path / "broken_local_plugin.py").write_text("raise RuntimeError('boom')\n")
    done = call("plugins", "--verbose", "--set", 'plugins.import=["broken_local_plugin"]', PYTHONPATH=f"{tmp_path}:{environment().get('PYTHONPATH', '')}")
    assert done.returncode == 0, done.stderr
    (fcfs,) = (line for line in done.stdout.splitlines() if " fcfs " in line)
    assert fcfs.split()[:6] == ["scheduler_policy", "fcfs", "corekit", __version__, "1", "stable"]
    assert "provisional" in next(line for line in done.stdout.splitlines() if line.startswith("executor"))
    assert "failed: broken_local_plugin" in done.stdout
    assert "RuntimeError: boom" in done.stdout
    assert "Traceback" in done.stdout


def test_entry_points_of_others_that_cannot_be_read_stop_nothing(tmp_path: Path) -> None:
    """pydantic and torch search those of every distribution for plugins of their own."""
    metadata = tmp_path / "latin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: latin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_bytes(b"[console_scripts]\n\xff\xfe = x:y\n")
    done = call("check", write(tmp_path), PYTHONPATH=f"{tmp_path}:{environment().get('PYTHONPATH', '')}")
    assert done.returncode == 0, done.stderr
    assert "scripted" in done.stdout
