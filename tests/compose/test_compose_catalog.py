"""The catalog: by name, by distribution and name, or automatically; and what it says when it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from compose_installs import Install, plugin

from corekit.api import API_VERSION, BuildContext, Provider
from corekit.compose.catalog import Candidate, Catalog, build_catalog
from corekit.compose.discovery import Discovery, Failure, Plugin, discover
from corekit.compose.errors import ConfigError
from corekit.weights import SourceError


def catalog(*providers: Provider[Any], failures: tuple[Failure, ...] = (), distributions: tuple[str, ...] = ()) -> Catalog:
    origins = distributions or ("dist",) * len(providers)
    given = [
        Candidate(slot="sampler", provider=provider, plugin=Plugin(distribution=name, version="1", entry="e", module="m"))
        for provider, name in zip(providers, origins, strict=True)
    ]
    return build_catalog(Discovery(providers=(), failures=failures), given)


def provider(name: str, **more: Any) -> Provider[Any]:
    return Provider(name=name, api=API_VERSION, summary="", build=lambda context, options: object(), **more)


def refusing(reason: str) -> Any:
    return lambda context: (reason,)


def test_an_unknown_name_says_what_there_is_and_what_failed() -> None:
    failure = Failure(plugin=Plugin(distribution="corekit-fast", version="3", entry="fast", module="fast"), reason="ImportError: no CUDA", hook=None)
    with pytest.raises(ConfigError) as caught:
        catalog(provider("torch"), provider("numpy"), failures=(failure,)).find("sampler", "troch", "f.toml: [sampler] use")
    text = str(caught.value)
    assert text.startswith("f.toml: [sampler] use = 'troch': no such provider. Did you mean 'torch'? Available: numpy, torch.")
    assert "corekit-fast 3 (plugin 'fast', module fast): ImportError: no CUDA" in text


def test_a_name_that_resembles_none_comes_with_the_next_step() -> None:
    with pytest.raises(ConfigError) as caught:
        catalog().find("sampler", "openai-http", "[[frontend]] number 1, use")
    text = str(caught.value)
    assert text.startswith(
        "[[frontend]] number 1, use = 'openai-http': no such provider. Install the distribution that has it (corekit itself for corekit's own parts"
    )
    assert text.endswith('[plugins] import = ["corekit_openai_http"]. Available: none.')


def test_a_name_may_be_blocked(install: Install) -> None:
    install("corekit-lifo", plugin("scheduler_policies", "lifo"))
    with pytest.raises(ConfigError) as caught:
        build_catalog(discover(blocked=["corekit-lifo"])).find("scheduler_policy", "lifo", "use")
    assert "no such provider. [plugins] block keeps out corekit-lifo: if the part is in there, remove it from the list. Available:" in str(caught.value)
    assert "Install" not in str(caught.value)


def test_two_of_one_name_need_the_distribution() -> None:
    two = catalog(provider("torch"), provider("torch"), distributions=("a", "b"))
    with pytest.raises(ConfigError, match="Say which: a:torch, b:torch"):
        two.find("sampler", "torch", "use")
    assert two.find("sampler", "b:torch", "use").plugin.distribution == "b"
    assert two.names("sampler") == ["a:torch", "b:torch"]


@pytest.mark.parametrize(
    ("version", "fine"), [("API_VERSION", True), ("API_VERSION - 1", API_VERSION > 1), ("API_VERSION + 1", False), ("API_VERSION - 2", False)]
)
def test_versions_of_the_contract(install: Install, version: str, fine: bool) -> None:
    install("corekit-other", plugin("samplers", "other", api=version), version="5.0")
    found = build_catalog(discover())
    if fine:
        assert found.find("sampler", "other", "use").name == "other"
        return
    with pytest.raises(ConfigError) as caught:
        found.find("sampler", "other", "[sampler] use")
    wrong = eval(version, {"API_VERSION": API_VERSION})
    assert f"corekit-other 5.0 (plugin 'part', module corekit_other_plugin) was written for version {wrong}" in str(caught.value)
    before = f" or {API_VERSION - 1}" if API_VERSION > 1 else ""  # there never was a version 0
    assert f"accepts {API_VERSION}{before}. Install" in str(caught.value)
    assert "other" not in found.names("sampler")


def test_auto_takes_the_highest_rank_that_runs_here_and_says_why() -> None:
    parts = catalog(provider("slow"), provider("fast", rank=20, refuse=refusing("no GPU")), provider("good", rank=10), provider("named", rank=-1))
    best, why = parts.best("sampler", BuildContext(), "use")
    assert best.name == "good"
    assert why == "auto: highest rank (10) that runs here; passed over fast: no GPU"


def test_auto_does_not_depend_on_the_order_of_registration() -> None:
    a, b = provider("a", rank=5), provider("b", rank=5)
    assert catalog(a, b).best("sampler", BuildContext(), "use")[0].name == catalog(b, a).best("sampler", BuildContext(), "use")[0].name == "a"


def test_auto_prefers_corekits_own_among_equals() -> None:
    """To install a part that says nothing of its rank changes no choice."""
    parts = catalog(provider("aaa"), provider("torch"), distributions=("corekit-aaa", "corekit"))
    assert parts.best("sampler", BuildContext(), "use")[0].name == "torch"
    ahead = catalog(provider("aaa", rank=1), provider("torch"), distributions=("corekit-aaa", "corekit"))
    assert ahead.best("sampler", BuildContext(), "use")[0].name == "aaa"


@pytest.mark.parametrize("name", ["fast", "corekit-fast:fast"])
def test_a_name_whose_plugin_failed_gets_that_reason_alone(name: str) -> None:
    failure = Failure(plugin=Plugin(distribution="corekit-fast", version="3", entry="fast", module="fast"), reason="ImportError: no CUDA", hook=None)
    with pytest.raises(ConfigError) as caught:
        catalog(provider("faster"), failures=(failure,)).find("sampler", name, "use")
    assert str(caught.value) == f"use = {name!r}: its plugin failed to register: corekit-fast 3 (plugin 'fast', module fast): ImportError: no CUDA"


def test_auto_with_nothing_left_says_every_reason() -> None:
    parts = catalog(provider("fast", refuse=refusing("no GPU")), provider("tiny", rank=-1))
    with pytest.raises(ConfigError, match=r"fast: no GPU\. Only when named: tiny"):
        parts.best("sampler", BuildContext(), "[sampler] use")


def test_a_refuse_that_raises_is_a_refusal() -> None:
    def raising(context: BuildContext) -> list[str]:
        raise KeyError("x")

    best, why = catalog(provider("odd", rank=9, refuse=raising), provider("good")).best("sampler", BuildContext(), "use")
    assert best.name == "good"
    assert "refuse() raised KeyError" in why


def test_a_damaged_model_is_no_reason_to_pass_a_part_over() -> None:
    """Else a model with a broken vocabulary would quietly be served with a tokenizer that has nothing to do with it."""

    def raising(context: BuildContext) -> list[str]:
        raise SourceError("m.gguf: the vocabulary is damaged")

    with pytest.raises(SourceError, match="vocabulary is damaged"):
        catalog(provider("hf", rank=9, refuse=raising), provider("bytes")).best("sampler", BuildContext(), "use")
