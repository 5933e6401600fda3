"""Discovery: real distributions on the path, whole ones and every kind of broken one; none hides another."""

from __future__ import annotations

import re
import sys

import pytest
from compose_installs import Install, plugin

from corekit.compose.composition import find_catalog
from corekit.compose.config import load
from corekit.compose.discovery import Discovery, discover, missing_requirements
from corekit.compose.errors import ConfigError

POLICY = plugin("scheduler_policies", "lifo")


def names(found: Discovery, distribution: str) -> list[str]:
    return [registered.provider.name for registered in found.providers if registered.plugin.distribution == distribution]


def reason(found: Discovery, distribution: str) -> str:
    (failure,) = (failure for failure in found.failures if failure.plugin.distribution == distribution)
    assert "corekit" not in names(found, distribution)
    assert {"fcfs", "free-list", "transformers"} <= set(names(found, "corekit")), "one broken plugin hides the others"
    return str(failure)


def test_built_in_parts_are_there_once_with_and_without_metadata() -> None:
    slots = [(registered.slot, registered.provider.name) for registered in discover().providers if registered.plugin.distribution == "corekit"]
    assert ("scheduler_policy", "fcfs") in slots
    assert len(slots) == len(set(slots))


def test_an_installed_distribution_registers(install: Install) -> None:
    install("corekit-lifo", POLICY, version="0.3")
    (found,) = (r for r in discover().providers if r.plugin.distribution == "corekit-lifo")
    assert (found.slot, found.provider.name, found.plugin.version, found.plugin.entry) == ("scheduler_policy", "lifo", "0.3", "part")


def test_discovery_leaves_nothing_behind(install: Install) -> None:
    site = install("corekit-lifo", POLICY)
    assert names(discover(), "corekit-lifo") == ["lifo"]
    sys.path.remove(str(site))
    assert names(discover(), "corekit-lifo") == []


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
        (None, "ModuleNotFoundError"),
        ("x = 1", "no hook that registers anything"),
        (POLICY.replace("policies():", "policies(config):"), "hook corekit_register_scheduler_policies: a hook takes nothing, this one takes config."),
        (POLICY.replace("scheduler_policies", "schedulr_policies"), "hook corekit_register_schedulr_policies: there is no such hook. Did you mean"),
        (POLICY.replace("@hookimpl", ""), "hook corekit_register_scheduler_policies: the function is not marked"),
        (POLICY.replace("return [", "return 3 or ["), "must return a sequence of corekit.api.Provider, returned int"),
        (POLICY.replace("return [", "raise OSError('no disk')\n    return ["), "hook corekit_register_scheduler_policies: OSError: no disk"),
        (POLICY.replace('"a part",', '"a part", colour=3,'), "unexpected keyword argument 'colour'"),
        (POLICY.replace("object())]", "object())] * 2"), "registers more than one provider of the name lifo"),
        (POLICY.replace("'lifo'", "'LIFO first'"), "Provider 'LIFO first': name must be kebab-case"),
        (POLICY.replace("'lifo'", "''"), "Provider '': name must be kebab-case"),
        (POLICY.replace("'lifo'", "7"), "Provider 7: name must be kebab-case"),
        (POLICY.replace("API_VERSION,", "'1',").replace("import '1',", "import"), "Provider 'lifo': api must be int, is str"),
        (POLICY.replace('"a part",', "None,"), "Provider 'lifo': summary must be str, is NoneType"),
        (POLICY.replace('"a part",', '"a part", rank="x", refuse=3,'), "Provider 'lifo': rank must be int, is str; refuse must be callable, is int"),
        (POLICY.replace('"a part",', '"a part", rank=True,'), "rank must be int, is bool"),
        (POLICY.replace("lambda context, options: object()", "None"), "build must be callable, is NoneType"),
        (POLICY.replace('"a part",', '"a part", options=int,'), "options must be a frozen dataclass or None"),
        ("from dataclasses import make_dataclass" + POLICY.replace('"a part",', '"a part", options=make_dataclass("O", []),'), "options must be a frozen"),
        ("import asyncio; raise asyncio.CancelledError('late')", "CancelledError: late"),
        (POLICY.replace("return [", "raise GeneratorExit\n    return ["), "hook corekit_register_scheduler_policies: GeneratorExit"),
    ],
)
def test_broken_plugins_are_recorded_with_plugin_version_and_hook(install: Install, module: str | None, said: str) -> None:
    install("corekit-broken", module, version="2.1")
    text = reason(discover(), "corekit-broken")
    assert text.startswith("corekit-broken 2.1 (plugin 'part', module corekit_broken_plugin)")
    assert said in text


def test_a_signal_ends_discovery(install: Install) -> None:
    install("corekit-slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        discover()


def test_a_failure_keeps_its_traceback(install: Install) -> None:
    install("corekit-broken", "def deep():\n    raise RuntimeError('boom')\ndeep()")
    (failure,) = (f for f in discover().failures if f.plugin.distribution == "corekit-broken")
    assert "in deep" in failure.traceback


def test_a_plugin_is_whole_or_not_at_all(install: Install) -> None:
    """One good hook and one bad: a half configured plugin would be worse than none."""
    install("corekit-half", POLICY + "\n\n@hookimpl\ndef corekit_register_samplers():\n    raise RuntimeError('boom')\n")
    found = discover()
    assert names(found, "corekit-half") == []
    assert "hook corekit_register_samplers: RuntimeError: boom" in reason(found, "corekit-half")


def test_two_distributions_with_one_entry_name(install: Install) -> None:
    install("corekit-one", plugin("samplers", "one"), entry="same")
    install("corekit-two", plugin("samplers", "two"), entry="same")
    found = discover()
    assert names(found, "corekit-one") == ["one"]
    assert names(found, "corekit-two") == ["two"]


def test_one_distribution_seen_twice_counts_once(install: Install) -> None:
    """Stale metadata of an older version further down the path: Python imports the first, and so do we."""
    install("corekit-lifo", POLICY, version="0.1", folder="old")
    install("corekit-lifo", POLICY, version="0.2", folder="new")
    found = discover()
    assert [r.plugin.version for r in found.providers if r.plugin.distribution == "corekit-lifo"] == ["0.2"]
    (note,) = (note for note in found.notes if "corekit-lifo" in note)
    assert "0.2" in note
    assert "0.1" in note


def test_unreadable_entry_points_hide_nothing(install: Install) -> None:
    install("corekit-odd", POLICY, entry_points="[corekit]\nthis line has no equals sign\n")
    install("corekit-lifo", POLICY)
    found = discover()
    assert names(found, "corekit-lifo") == ["lifo"]
    assert "metadata cannot be read" in reason(found, "corekit-odd") or "corekit-odd" in str(found.failures)


def test_blocked_distributions_are_not_even_imported(install: Install) -> None:
    install("corekit-lifo", "raise RuntimeError('imported')")
    found = discover(blocked=["Corekit_LIFO"])
    assert not [f for f in found.failures if f.plugin.distribution == "corekit-lifo"]
    assert "corekit_lifo_plugin" not in sys.modules
    assert any("corekit-lifo" in note and "blocked" in note for note in found.notes)


def test_a_blocked_name_that_blocks_nothing_is_an_error(install: Install) -> None:
    install("corekit-lifo", POLICY)
    config = load(given={"plugins": {"block": ["Corekit.LIFO", "corekit-lfio", "pytest"]}})
    with pytest.raises(ConfigError) as caught:
        find_catalog(config)
    lifo, other = caught.value.problems
    assert "[plugins] block: 'corekit-lfio': there is no distribution of that name with plugins. Did you mean 'corekit-lifo'?" in lifo
    assert "'pytest': there is no" in other
    assert "corekit-lifo" in other
    assert "lifo" not in find_catalog(load(given={"plugins": {"block": ["Corekit.LIFO"]}})).names("scheduler_policy")


def test_merely_installed_broken_plugins_stop_nothing(install: Install) -> None:
    install("corekit-broken", "raise RuntimeError('boom')")
    assert "fcfs" in find_catalog(load()).names("scheduler_policy")


def test_modules_on_the_path(install: Install, tmp_path: object) -> None:
    install("corekit-lifo", POLICY, entry_points="")
    catalog = find_catalog(load(given={"plugins": {"import": ["corekit_lifo_plugin"]}}))
    assert "lifo" in catalog.names("scheduler_policy")


def test_a_module_that_is_imported_and_installed_registers_once(install: Install) -> None:
    install("corekit-lifo", POLICY)
    assert sum(r.provider.name == "lifo" for r in discover(imports=["corekit_lifo_plugin"]).providers) == 1


@pytest.mark.parametrize(("module", "said"), [(None, "PYTHONPATH"), ("raise RuntimeError('boom')", "RuntimeError: boom")])
def test_an_imported_module_that_fails_is_fatal(install: Install, module: str | None, said: str) -> None:
    install("corekit-lifo", module, entry_points="")
    with pytest.raises(ConfigError, match=r"\[plugins\] import: corekit_lifo_plugin") as caught:
        find_catalog(load(given={"plugins": {"import": ["corekit_lifo_plugin"]}}))
    assert said in str(caught.value)


def test_a_failure_ends_as_it_ends_itself(install: Install) -> None:
    install("corekit-lifo", "def corekit_register_sampler(): ...", entry_points="")
    install("corekit-fifo", "raise RuntimeError('boom')", entry_points="")
    with pytest.raises(ConfigError) as caught:
        find_catalog(load(given={"plugins": {"import": ["corekit_lifo_plugin", "corekit_fifo_plugin"]}}))
    hook, raised = caught.value.problems
    assert hook.endswith("Did you mean 'corekit_register_samplers'?")
    assert re.search(r"RuntimeError: boom at \S+corekit_fifo_plugin\.py:1$", raised)


def test_requirements_are_reported_together(install: Install) -> None:
    install("corekit-lifo", POLICY, version="0.1")
    install("corekit-broken", "raise RuntimeError('boom')")
    install("corekit-silent", None, entry_points="")
    wanted = ["corekit-lifo>=0.1", "corekit-lifo>=9", "corekit-absent", "corekit-broken", "corekit-silent", "what ever?", 'corekit-absent; python_version<"3"']
    config = load(given={"plugins": {"require": wanted}})
    with pytest.raises(ConfigError) as caught:
        find_catalog(config)
    said = caught.value.problems
    assert len(said) == 5
    for problem, part in zip(
        said, ["version 0.1 is installed", "not installed", "RuntimeError: boom", "registers no part", "is not a requirement"], strict=True
    ):
        assert part in problem
        assert "[plugins] require" in problem


def test_met_requirements_are_silent(install: Install) -> None:
    install("corekit-lifo", POLICY, version="0.2rc1")
    assert missing_requirements(["corekit_lifo>=0.1,<0.3"], discover()) == []
