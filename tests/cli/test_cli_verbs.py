"""check, run and serve as processes: output, exit codes, signals, a busy port."""

from __future__ import annotations

import json
import logging
import os
import select
import shlex
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cli_process import MAIN, SCRIPTED, Running, environment, running, write
from click.testing import CliRunner, Result

from corekit.cli import main

Invoke = Callable[..., Result]

NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(address: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with NO_PROXY.open(request, timeout=30) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def address_of(server: Running) -> str:
    return server.wait_for("listening on").split()[2]


@pytest.fixture
def invoke() -> Iterator[Invoke]:
    """Run a verb here, with PyTorch loaded once for all, and leave the process's logging as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def call(*arguments: str, **environ: str) -> Result:
        return CliRunner().invoke(main, arguments, env=environ)

    yield call
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_check_says_what_fills_each_slot(tmp_path: Path, invoke: Invoke) -> None:
    done = invoke("check", write(tmp_path))
    assert done.exit_code == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert "bytes" in lines["tokenizer"]
    assert "passed over hf: the source has no tokenizer.json" in lines["tokenizer"]
    assert "named: " in lines["model"]
    assert "openai-http" in lines["frontend"]


def test_check_reports_all_faults_and_debug_shows_where(tmp_path: Path, invoke: Invoke) -> None:
    file = write(tmp_path, SCRIPTED + "[sampler]\nuse = 'troch'\n")
    done = invoke("check", file, "--set", "scheduler_policy.use=fcsf")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "corekit: 2 problems in the configuration:" in done.stderr
    assert "Did you mean 'torch'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in invoke("check", file, COREKIT_DEBUG="1").stderr


BROKEN = """
from corekit.api import API_VERSION, Provider, hookimpl

class Policy:
    def plan(self):
        pass

class Layer:
    pass

@hookimpl
def corekit_register_scheduler_policies():
    return [Provider(name="planless", api=API_VERSION, summary="a fault", build=lambda context, options: Policy())]

@hookimpl
def corekit_register_block_allocators():
    return [Provider(name="layerless", api=API_VERSION, summary="a fault", build=lambda context, options: Layer())]
"""


def test_check_builds_what_needs_no_weights(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_local_parts.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = write(tmp_path, SCRIPTED.replace('["corekit_openai_http"]', '["corekit_openai_http", "broken_local_parts"]'))
    done = invoke("check", file, "--set", "scheduler_policy.use=planless")
    assert (done.exit_code, done.stdout) == (3, "")
    built = "--set scheduler_policy.use: planless from broken_local_parts built a Policy"
    assert f"{built} that does not fit the slot scheduler_policy: plan: it takes no parameter" in done.stderr
    done = invoke("check", file, "--set", "scheduler_policy.use=planless", "--set", 'block_allocator.stack=["free-list", "layerless"]')
    assert (done.exit_code, done.stdout) == (3, "")
    assert "does not fit the slot block_allocator" in done.stderr
    assert "does not fit the slot scheduler_policy" in done.stderr
    assert invoke("check", file).exit_code == 0


def test_serve_without_a_frontend_is_refused_before_weights(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corekit.builtin.scripted.Scripted.load", lambda *_: pytest.fail("weights were loaded"))
    done = invoke("serve", write(tmp_path), "--set", "frontend=[]")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "there is nothing to serve" in done.stderr


@pytest.mark.parametrize("level", ["info", "warning"])
def test_a_model_that_is_not_there_is_exit_code_4(tmp_path: Path, invoke: Invoke, level: str) -> None:
    done = invoke("run", "hello", "--model", str(tmp_path / "nothing"), "--log-level", level)
    assert done.stderr.startswith(f"loading {tmp_path / 'nothing'} ...\n") == (level == "info")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 16,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"{}"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b'{"chat_template": "{% for %}"}'),
        ("chat_template.jinja", b"{% for %}"),
    ],
)
def test_a_damaged_model_is_exit_code_4(tmp_path: Path, invoke: Invoke, name: str, content: bytes) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [], "decoder": level}))
    assert invoke("check", str(tmp_path), "--set", "frontend=[]").exit_code == 0
    (tmp_path / name).write_bytes(content)
    done = invoke("check", str(tmp_path), "--set", "frontend=[]")
    assert done.exit_code == 4, done.stderr
    assert name in done.stderr
    assert str(tmp_path) in done.stderr
    assert "damaged" in done.stderr or "broken download" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_prints_the_answer(tmp_path: Path, invoke: Invoke) -> None:
    done = invoke("run", "hello", "--config", write(tmp_path), "--raw", "--max-tokens", "11")
    assert (done.exit_code, done.stdout) == (0, "This answer\n")
    assert done.stderr.endswith("(stopped at --max-tokens 11)\n")
    done = invoke("run", "hello", "--config", write(tmp_path), "--raw")
    assert done.stdout.startswith("This answer was")
    assert "stopped" not in done.stderr


@pytest.mark.parametrize("prompt", [b"hello", "Gr\u00fc\u00dfe \U0001f600".encode()])
def test_run_reads_standard_input(tmp_path: Path, prompt: bytes) -> None:
    done = CliRunner().invoke(main, ["run", "-", "--config", write(tmp_path), "--raw", "--max-tokens", "11"], input=prompt)
    assert (done.exit_code, done.stdout) == (0, "This answer\n")


def test_standard_input_that_is_not_text(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["run", "-", "--config", write(tmp_path), "--raw"], input=b"ab\xff")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "standard input is not UTF-8 text (invalid start byte at byte 2)" in done.stderr
    command = [*MAIN, "run", "-", "--config", write(tmp_path), "--raw"]
    closed = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *command], capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert closed.returncode == 2
    assert "standard input cannot be read: it is closed. Give the prompt as an argument." in closed.stderr
    assert "Traceback" not in closed.stderr


def test_a_signal_while_standard_input_is_awaited(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        command = [*MAIN, "run", "-", "--config", write(tmp_path), "--raw"]
        with subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as process:
            os.write(writing, b"the beginning of a prompt")
            while select.select([reading], [], [], 0)[0] and process.poll() is None:  # until it has read that
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
            assert (process.returncode, said) == (130, "")
    finally:
        os.close(reading)
        os.close(writing)


def test_what_cannot_be_answered_is_refused_before_weights(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corekit.builtin.scripted.Scripted.load", lambda *_: pytest.fail("weights were loaded"))
    file = write(tmp_path)
    done = invoke("run", "", "--config", file)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "PROMPT is empty" in done.stderr
    done = invoke("run", "hello", "--config", file, "--max-tokens", "4096")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "--max-tokens 4096: prompt and answer together have at most 4096 tokens here. Ask for at most 4095." in done.stderr


def test_a_refused_request_is_exit_code_1(tmp_path: Path, invoke: Invoke) -> None:
    done = invoke("run", "hello" * 1000, "--config", write(tmp_path))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "this model's maximum context length is" in done.stderr


@pytest.mark.parametrize("arguments", [("run", "hello", "--config"), ("serve",), ("check",), ("plugins",), ("config", "show")])
def test_a_file_that_is_not_there_is_exit_code_3(tmp_path: Path, invoke: Invoke, arguments: tuple[str, ...]) -> None:
    done = invoke(*arguments, str(tmp_path / "nosuch.toml"))
    assert (done.exit_code, done.stdout) == (3, "")
    assert "nosuch.toml: cannot be read: No such file or directory" in done.stderr


def test_run_refuses_what_does_not_go_together(tmp_path: Path, invoke: Invoke) -> None:
    done = invoke("run", "hello", "--raw", "--system", "x", "--config", write(tmp_path))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--system" in done.stderr


def test_a_busy_port_is_one_clear_line(tmp_path: Path, invoke: Invoke) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = invoke("serve", write(tmp_path), "--port", str(port))
    assert (done.exit_code, done.stdout) == (5, "")
    loading, line = done.stderr.splitlines()
    assert loading == "loading scripted ..."
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


def test_options_of_serve_reach_the_frontend_and_the_model(tmp_path: Path, invoke: Invoke) -> None:
    file = write(tmp_path)
    done = invoke("serve", file, "--max-model-len", "8k")
    assert done.exit_code == 3
    assert "command line: [model] max_model_len = 8192: the context of scripted is 4096 tokens" in done.stderr
    done = invoke("serve", file, "--max-model-len", "1x")
    assert done.exit_code == 2
    assert "--max-model-len" in done.stderr
    assert "'1x' is no number of tokens; write it as 4096 or 4k." in done.stderr
    done = invoke("serve", file, "--max-model-len", "99999999")
    assert done.exit_code == 3
    assert '[model] max_model_len: must be an integer from 0 to 16777216, or a text such as "4k", got 99999999' in done.stderr
    done = invoke("serve", file, "--api-key", "env:NOT_SET_ANYWHERE")
    assert done.exit_code == 3
    assert "NOT_SET_ANYWHERE is not set" in done.stderr
    done = invoke("serve", file, "--host", "")
    assert done.exit_code == 3
    assert "host must not be empty" in done.stderr
    done = invoke("serve", write(tmp_path, "frontend = []\n" + SCRIPTED.partition("[[frontend]]")[0]), "--port", "1")
    assert done.exit_code == 3
    assert "command line: [[frontend]] has no element 'openai-http'" in done.stderr


def test_run_ends_on_signals(tmp_path: Path) -> None:
    with running("run", "hello", "--config", write(tmp_path), "--raw", "--set", "model.options.step_seconds=0.2", "--log-level", "debug") as process:
        process.wait_for("asyncio")  # its event loop runs: the answer is on its way
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 143
        assert "Traceback" not in process.text


def test_the_line_that_says_where_has_the_served_name_and_a_command_that_is_answered(tmp_path: Path) -> None:
    with running("serve", write(tmp_path), "--served-model-name", "mine", "--served-model-name", "other", "--api-key", "a-secret") as server:
        line = server.wait_for("listening on")
        assert "(model mine; try: curl " in line
        assert "a-secret" not in line
        command = line.partition("try: ")[2].rstrip().removesuffix(")")
        argv = shlex.split(command.replace("$KEY", "a-secret"))
        assert argv[:2] == ["curl", "-H"]
        name, _, value = argv[2].partition(": ")
        with NO_PROXY.open(urllib.request.Request(argv[3], headers={name: value}), timeout=30) as answer:
            assert json.load(answer)["data"][0]["id"] == "mine"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_and_ends_with_0_on_signals(tmp_path: Path, number: signal.Signals) -> None:
    with running("serve", write(tmp_path), "--served-model-name", "mine") as server:
        address = address_of(server)
        answer = post(address, {"model": "mine", "prompt": "a", "max_tokens": 11})
        assert "This answer" in json.dumps(answer)
        server.process.send_signal(number)
        assert server.end() == 0
        assert "Traceback" not in server.text
        assert "stopping\n" in server.lines
        assert "KV cache: 64 blocks of 16 tokens = 1,024 tokens" in server.text
        assert "the pool holds no more" in server.text


def test_a_signal_ends_a_server_whose_log_nobody_reads_any_more(tmp_path: Path) -> None:
    """`corekit serve 2>&1 | tee log`: Ctrl-C reaches the reader too, and it may end first."""
    command = [*MAIN, "serve", write(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            while "listening on" not in process.stdout.readline():
                assert process.poll() is None
            process.stdout.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """A request is in flight that would take long; the first signal lets it go on, the second does not."""
    slow = ("--set", "model.options.step_seconds=0.5", "--set", "frontend.openai-http.options.shutdown_seconds=60")
    with running("serve", write(tmp_path), *slow) as server:
        address = address_of(server)
        asking = threading.Thread(target=_ignore, args=(address,), daemon=True)
        asking.start()
        time.sleep(1.0)
        server.process.send_signal(signal.SIGINT)
        server.wait_for("stopping: up to 60 s for 1 running answer; Ctrl-C again stops at once\n")
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.7)
        server.process.send_signal(signal.SIGINT)
        assert server.end(5) == 130
        assert "Traceback" not in server.text


def _ignore(address: str) -> None:
    with suppress(OSError):
        post(address, {"model": "scripted", "prompt": "a", "max_tokens": 1000})


def test_a_signal_while_loading_is_no_traceback_either(tmp_path: Path) -> None:
    (tmp_path / "slow_local_plugin.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    file = write(tmp_path, SCRIPTED.replace('["corekit_openai_http"]', '["slow_local_plugin"]'))
    with running("serve", file, PYTHONPATH=f"{tmp_path}:{environment().get('PYTHONPATH', '')}") as server:
        server.wait_for("importing")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert server.text in ("loading scripted ...\nimporting\n", "importing\nloading scripted ...\n")  # two streams


@pytest.mark.parametrize("verb", [("bench", "latency"), ("check",)])
def test_a_signal_while_a_verb_loads_is_not_taken_for_a_broken_plugin(tmp_path: Path, verb: tuple[str, ...]) -> None:
    (tmp_path / "slow_local_plugin.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    file = write(tmp_path, SCRIPTED.replace('["corekit_openai_http"]', '["slow_local_plugin"]'))
    with running(*verb, file, PYTHONPATH=f"{tmp_path}:{environment().get('PYTHONPATH', '')}") as process:
        process.wait_for("importing")
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 143
        assert process.text == "importing\n"


def test_where_json_is_asked_for_nothing_else_is_on_stderr(tmp_path: Path, invoke: Invoke) -> None:
    done = invoke("serve", write(tmp_path), "--host", "no such host", "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.exit_code, [line["level"] for line in lines]) == (5, ["info", "error"])
    assert lines[0]["event"] == "loading scripted ..."
    assert lines[1]["event"].startswith("corekit: openai-http cannot listen on no such host")
    lines = [json.loads(line) for line in invoke("serve", write(tmp_path), "--host", "no such host", "--debug", COREKIT_LOG_FORMAT="json").stderr.splitlines()]
    assert "Traceback" in lines[1]["exception"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("verb", [("check",), ("config", "show"), ("run", "hello", "--raw", "--config")])
def test_standard_output_that_is_full(tmp_path: Path, verb: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*MAIN, *verb, write(tmp_path)], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("corekit: standard output cannot be written: No space left on device. Make room where it goes, or send it elsewhere.\n")
    assert "Traceback" not in done.stderr
