"""Every way in which an installed plugin can be broken, as a user of the command line meets it: what is said, and what goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from compose_installs import Install, plugin

from corekit.api import API_VERSION
from corekit.cli import main

Run = Callable[..., Result]
SCRIPTED = """
frontend = []
[model]
source = "none"
use = "scripted"
[engine]
threads = 1
[block_allocator]
num_blocks = 16
[scheduler_policy]
use = "lifo"
"""
POLICY = plugin("scheduler_policies", "lifo")
WHO = "corekit-lifo 1.0 (plugin 'part', module corekit_lifo_plugin)"
HOOK = "corekit_register_scheduler_policies"
MODULE = """
from corekit.api import API_VERSION, Provider, hookimpl

class Lifo:
    def plan(self, step):
        {plan}

class Row:
    def accept(self, token_ids):
        pass

    def rollback(self, count):
        pass

    def fill(self, mask_row):
        raise RuntimeError("no mask today")

class Rows:
    def start(self, sample):
        return Row()

class Watch:
    def on_step(self, stats):
        raise RuntimeError("looked away")

    def on_request(self, stats):
        pass

def provider(name, make):
    return Provider(name=name, api=API_VERSION, summary="a part", build=lambda context, options: make())

@hookimpl
def corekit_register_scheduler_policies():
    return [provider("lifo", Lifo)]

@hookimpl
def corekit_register_logits_processors():
    return [provider("rows", Rows)]

@hookimpl
def corekit_register_observers():
    return [provider("watch", Watch)]
"""
FCFS = """from corekit.api import plan_in_order
        plan_in_order(step, admit=lambda request: request.arrival)"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """run(verb, ..., more=TOML): the verb with a file that names the policy `lifo`."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def call(*arguments: str, more: str = "") -> Result:
        file = tmp_path / "corekit.toml"
        file.write_text(SCRIPTED + more)
        place = [str(file)] if arguments[0] in ("check", "plugins") else ["--config", str(file)]
        return CliRunner().invoke(main, [arguments[0], *place, *arguments[1:]])

    yield call
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        pytest.param(None, f"{WHO}: ModuleNotFoundError: No module named 'corekit_lifo_plugin'", id="missing module"),
        pytest.param("raise RuntimeError('boom')", f"{WHO}: RuntimeError: boom", id="raises at import"),
        pytest.param("def broken(:", f"{WHO}: SyntaxError: ", id="no Python"),
        pytest.param("x = 1", f"{WHO}: it has no hook that registers anything. Mark functions named corekit_register_...", id="no hook"),
        pytest.param(
            POLICY.replace("policies():", "policies(config):"), f"{WHO}, hook {HOOK}: a hook takes nothing, this one takes config.", id="wrong hook argument"
        ),
        pytest.param(
            POLICY.replace("_policies", "_policy"), "there is no such hook. Did you mean 'corekit_register_scheduler_policies'?", id="wrong hook name"
        ),
        pytest.param(POLICY.replace("@hookimpl", ""), f"hook {HOOK}: the function is not marked with corekit.api.hookimpl", id="unmarked hook"),
        pytest.param(POLICY.replace("return [", "raise OSError('no disk')\n    return ["), f"{WHO}, hook {HOOK}: OSError: no disk", id="hook raises"),
        pytest.param(POLICY.replace("return [", "return 3 or ["), "must return a sequence of corekit.api.Provider, returned int", id="hook returns no list"),
    ],
)
def test_a_plugin_that_fails_is_quoted_when_its_part_is_missing_and_listed(install: Install, run: Run, module: str | None, said: str) -> None:
    install("corekit-lifo", module)
    done = run("check")
    assert (done.exit_code, done.stdout) == (3, "")
    assert f"[scheduler_policy] use = 'lifo': its plugin failed to register: {WHO}" in done.stderr
    done = run("check", "--set", "scheduler_policy.use=elsewhere")
    assert "'elsewhere': no such provider." in done.stderr
    assert "Available: fcfs, " in done.stderr
    assert f"A plugin failed to register: {WHO}" in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    listed = run("plugins")
    assert listed.exit_code == 0
    (failure,) = (line for line in listed.stdout.splitlines() if line.startswith("failed: corekit-lifo"))
    assert said in failure
    assert run("check", "--set", "scheduler_policy.use=fcfs").exit_code == 0, "a broken plugin that nobody names stops nothing"


def test_a_part_that_is_not_installed(run: Run) -> None:
    done = run("check", more='[plugins]\nrequire = ["corekit-lifo>=0.1"]\n')
    assert done.exit_code == 3
    assert "[plugins] require: corekit-lifo>=0.1: not installed. Install it: pip install 'corekit-lifo>=0.1'" in done.stderr
    done = run("check")
    assert "[scheduler_policy] use = 'lifo': no such provider." in done.stderr
    assert "A plugin failed" not in done.stderr


@pytest.mark.parametrize(("version", "wrong"), [("API_VERSION + 1", API_VERSION + 1), ("API_VERSION - 2", API_VERSION - 2)])
def test_another_version_of_the_contract(install: Install, run: Run, version: str, wrong: int) -> None:
    install("corekit-lifo", plugin("scheduler_policies", "lifo", api=version))
    done = run("check")
    assert done.exit_code == 3
    assert f"[scheduler_policy] use = 'lifo': {WHO} was written for version {wrong} of the contract; this corekit accepts " in done.stderr
    assert done.stderr.endswith("Install a matching version.\n")
    assert f"REFUSED: {WHO} was written for version {wrong}" in run("plugins").stdout


def test_two_of_one_name(install: Install, run: Run) -> None:
    install("corekit-lifo", MODULE.format(plan=FCFS), folder="one")
    install("corekit-other", POLICY, folder="two")
    done = run("check")
    assert done.exit_code == 3
    assert "use = 'lifo': 2 distributions have a provider of that name. Say which: corekit-lifo:lifo, corekit-other:lifo\n" in done.stderr
    done = run("check", "--set", "scheduler_policy.use=corekit-lifo:lifo")
    assert done.exit_code == 0
    assert "lifo             corekit-lifo 1.0" in done.stdout


def test_stale_metadata(install: Install, run: Run) -> None:
    """An older version further down the path: what Python imports counts, and the list says so."""
    install("corekit-lifo", MODULE.format(plan=FCFS), version="0.1", folder="old")
    install("corekit-lifo", MODULE.format(plan=FCFS), version="0.2", folder="new")
    assert run("check").exit_code == 0
    (note,) = (line for line in run("plugins").stdout.splitlines() if line.startswith("note: "))
    assert note.startswith("note: corekit-lifo is there twice: 0.2 in ")
    assert " is used, 0.1 in " in note
    assert note.endswith(" is not")
    done = run("check", more='[plugins]\nrequire = ["corekit-lifo<0.2"]\n')
    assert "corekit-lifo<0.2: version 0.2 is installed. Install another: pip install 'corekit-lifo<0.2'" in done.stderr


def test_a_blocked_plugin(install: Install, run: Run) -> None:
    install("corekit-lifo", "raise RuntimeError('imported')")
    done = run("check", more='[plugins]\nblock = ["corekit-lifo"]\n')
    assert done.exit_code == 3
    assert "[plugins] block keeps out corekit-lifo: if the part is in there, remove it from the list." in done.stderr
    assert "imported" not in done.stderr
    listed = run("plugins", more='[plugins]\nblock = ["corekit-lifo"]\n').stdout
    assert "note: corekit-lifo 1.0 is blocked by [plugins] block" in listed
    assert "failed" not in listed


def test_a_module_to_import_that_is_broken(install: Install, run: Run) -> None:
    install("corekit-lifo", "raise RuntimeError('boom')", entry_points="")
    done = run("check", more='[plugins]\nimport = ["corekit_lifo_plugin"]\n')
    assert done.exit_code == 3
    assert "[plugins] import: corekit_lifo_plugin (plugin '[plugins] import', module corekit_lifo_plugin): RuntimeError: boom at " in done.stderr
    assert "corekit_lifo_plugin.py:1\n" in done.stderr


def test_a_signature_that_does_not_fit(install: Install, run: Run) -> None:
    install("corekit-lifo", MODULE.format(plan=FCFS).replace("plan(self, step)", "plan(self, step, more)"))
    done = run("check")
    assert done.exit_code == 3
    assert "lifo from corekit-lifo 1.0 built a Lifo that does not fit the slot scheduler_policy: plan: it needs a parameter 'more'" in done.stderr
    assert "that no caller passes. Expected plan(step" in done.stderr


def test_a_build_that_raises(install: Install, run: Run) -> None:
    install("corekit-lifo", POLICY.replace("object()", "1 / 0"))
    done = run("check")
    assert done.exit_code == 3
    assert done.stderr.startswith("corekit: ZeroDivisionError: division by zero\n  scheduler_policy lifo from corekit-lifo 1.0 raised this while it was built.")
    assert "It is named by " in done.stderr
    assert "--debug shows where" in done.stderr


def test_a_policy_that_raises_in_a_step(install: Install, run: Run) -> None:
    """It is named once, with file and line, and the answer comes all the same."""
    install("corekit-lifo", MODULE.format(plan="raise RuntimeError('boom')"))
    done = run("run", "hello", "--raw", "--max-tokens", "11")
    assert (done.exit_code, done.stdout) == (0, "This answer\n")
    assert done.stderr.count("scheduler policy Lifo raised RuntimeError('boom') at ") == 1
    assert "in.py:6; first come first served planned the rest of the step" in done.stderr


def test_an_observer_that_raises_in_a_step(install: Install, run: Run) -> None:
    install("corekit-lifo", MODULE.format(plan=FCFS))
    done = run("run", "hello", "--raw", "--max-tokens", "11", more='[[observer]]\nuse = "watch"\n')
    assert (done.exit_code, done.stdout) == (0, "This answer\n")
    assert done.stderr.count("observer Watch raised RuntimeError('looked away') in on_step and hears nothing more") == 1


def test_a_logits_processor_that_raises_in_a_step(install: Install, run: Run) -> None:
    """The fault is that request's own: it is told which part raised."""
    install("corekit-lifo", MODULE.format(plan=FCFS))
    done = run("run", "hello", "--raw", "--max-tokens", "11", more='[[logits_processor]]\nuse = "rows"\n')
    assert (done.exit_code, done.stdout.strip()) == (1, "")
    assert done.stderr.endswith("corekit: logits processor Row.fill raised RuntimeError: no mask today\n  --log-level debug shows where.\n")
    more = run("run", "hello", "--raw", "--log-level", "debug", "--max-tokens", "11", more='[[logits_processor]]\nuse = "rows"\n')
    assert "corekit_lifo_plugin.py" in more.stderr, "the traceback"
