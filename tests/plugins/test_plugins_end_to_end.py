"""The examples as a user meets them: built, installed, listed, checked, and served with. What they do is seen over HTTP."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("corekit-lifo", "corekit-likelier", "corekit-ngram-guard")
MAIN = [sys.executable, "-c", "from corekit.cli import main; main(prog_name='corekit')"]
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
SERVED = """
[model]
source = "none"
use = "scripted"
[model.options]
texts = ["ababababababababababababab"]
step_seconds = 0.08
[engine]
threads = 1
[scheduler]
max_num_seqs = 1
[scheduler_policy]
use = "lifo"
[block_allocator]
num_blocks = 64
[plugins]
import = ["corekit_openai_http"]
require = ["corekit-lifo>=0.1", "corekit-likelier", "corekit-ngram-guard"]
[[frontend]]
use = "openai-http"
options = {port = 0}
[[logits_processor]]
use = "ngram-guard"
options = {n = 3}
[[http_route]]
use = "likelier"
[[observer]]
use = "request-log"
options = {path = "LOG"}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, built by their own build backend and installed by pip into a folder of their own."""
    work, target = tmp_path_factory.mktemp("examples"), tmp_path_factory.mktemp("site")
    left = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")
    sources = [shutil.copytree(ROOT / "examples" / name, work / name, ignore=left) for name in NAMES]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", str(target), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def environment(site: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COREKIT_")}
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def call(site: Path, *arguments: str) -> str:
    done = subprocess.run([*MAIN, *arguments], capture_output=True, text=True, env=environment(site), timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def served(site: Path, tmp_path: Path) -> str:
    file = tmp_path / "corekit.toml"
    file.write_text(SERVED.replace("LOG", str(tmp_path / "requests.jsonl")))
    return str(file)


@contextmanager
def serving(site: Path, file: str) -> Iterator[str]:
    """The address of a server that ends in order."""
    with subprocess.Popen([*MAIN, "serve", file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(site)) as process:
        try:
            assert process.stdout is not None
            said: list[str] = []
            while "listening on" not in (line := process.stdout.readline()):
                said.append(line)
                assert line, "".join(said)
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield next(word for word in line.split() if word.startswith("http://"))
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


def post(address: str, path: str = "/v1/completions", **body: object) -> dict[str, Any]:
    fields = {"model": "scripted", "temperature": 0} if path.startswith("/v1/") else {}
    asked = json.dumps({**fields, **body}).encode()
    with NO_PROXY.open(urllib.request.Request(f"{address}{path}", asked, {"content-type": "application/json"}), timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_they_are_listed_with_their_distributions(site: Path) -> None:
    parts = {part["name"]: part for part in json.loads(call(site, "plugins", "--json"))["providers"]}
    for name, slot, distribution in (
        ("lifo", "scheduler_policy", "corekit-lifo"),
        ("ngram-guard", "logits_processor", "corekit-ngram-guard"),
        ("request-log", "observer", "corekit-ngram-guard"),
        ("likelier", "http_route", "corekit-likelier"),
    ):
        assert [parts[name][key] for key in ("slot", "distribution", "version", "api", "refused")] == [slot, distribution, "0.1.0", 1, None]


def test_a_server_acts_as_they_say(site: Path, served: str) -> None:
    """One seat: while a request runs, two more wait, and the later one is answered first. No three ids come twice. Each has its line."""
    ends: list[str] = []

    def ask(prompt: str, num_tokens: int) -> dict[str, Any]:
        answer = post(address, prompt=prompt, max_tokens=num_tokens)
        ends.append(prompt)
        return answer

    with serving(site, served) as address, ThreadPoolExecutor(3) as pool:
        asked = []
        for at, (prompt, num_tokens) in enumerate((("first", 24), ("second", 8), ("third", 8))):
            asked.append(pool.submit(ask, prompt, num_tokens))
            wait_for(address, num_running=1, num_waiting=at)
        answers = [future.result(60) for future in asked]
        likelier = post(address, "/likelier", text="ab", between=["ab", "ba"])
    assert ends == ["first", "third", "second"]
    assert likelier["likelier"] == "ab", "what the script says next"
    text = answers[0]["choices"][0]["text"]
    assert text.startswith("aba")
    trigrams = [text[at : at + 3] for at in range(len(text) - 2)]
    assert len(trigrams) > 4
    assert len(trigrams) == len(set(trigrams))
    lines = [json.loads(line) for line in (Path(served).parent / "requests.jsonl").read_text().splitlines()]
    assert [line["num_output_tokens"] for line in lines[:3]] == [answers[at]["usage"]["completion_tokens"] for at in (0, 2, 1)]
    assert all(line["total_seconds"] >= line["first_token_seconds"] > 0 for line in lines)


def wait_for(address: str, *, num_running: int, num_waiting: int) -> None:
    """Until the server says so: then the requests stand in the order in which they were sent."""
    wanted = {"corekit_num_requests_running": num_running, "corekit_num_requests_waiting": num_waiting}
    end = time.monotonic() + 30
    while True:
        with NO_PROXY.open(f"{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        if all(re.search(rf"^{name}{{.*}} {number}\.0$", text, re.MULTILINE) for name, number in wanted.items()):
            return
        assert time.monotonic() < end, f"it never came to {wanted}"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [("lifo", ()), ("likelier", ()), ("ngram-guard", ("n=2",)), ("request-log", (f"path={os.devnull}",))])
def test_their_kits_hold_as_installed(site: Path, name: str, more: tuple[str, ...]) -> None:
    said = call(site, "plugins", "check", name, *(part for option in more for part in ("--option", option)))
    assert " laws hold" in said
    assert "broken" not in said


@pytest.mark.slow
def test_check_says_which_part_fills_each_slot(site: Path, served: str) -> None:
    lines = {line.split()[0]: line for line in call(site, "check", served).splitlines() if line}
    for slot, shown in (
        ("scheduler_policy", "lifo             corekit-lifo 0.1.0"),
        ("logits_processor", "ngram-guard      corekit-ngram-guard 0.1.0"),
        ("observer", "request-log      corekit-ngram-guard 0.1.0"),
        ("http_route", "likelier         corekit-likelier 0.1.0"),
    ):
        assert shown in lines[slot]
