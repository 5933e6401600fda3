"""The signature check: everything a call by the core could trip over, and nothing that is an author's own business."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.api import API_VERSION, SLOTS, BlockAllocator, Provider, SchedulerPolicy, StepPlan, Tokenizer
from corekit.builtin.bytes_tokenizer import BytesTokenizer
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.compose.catalog import Candidate
from corekit.compose.contract import check_component, differences
from corekit.compose.discovery import Plugin
from corekit.compose.errors import ConfigError


def candidate(slot: str) -> Candidate:
    provider: Provider[Any] = Provider(name="part", api=API_VERSION, summary="", build=lambda context, options: None)
    return Candidate(slot=slot, provider=provider, plugin=Plugin(distribution="corekit-x", version="1.2", entry="e", module="m"))


@pytest.mark.parametrize(("protocol", "component"), [(SchedulerPolicy, Fcfs()), (BlockAllocator, FreeList(8)), (Tokenizer, BytesTokenizer())])
def test_built_in_parts_agree(protocol: type, component: object) -> None:
    assert list(differences(component, protocol)) == []


def test_no_protocol_accepts_an_empty_object() -> None:
    for slot in SLOTS:
        assert list(differences(object(), slot.protocol)), slot.name


def policy(plan: object) -> object:
    return type("Policy", (), {"plan": plan})()


FINE = [
    lambda self, step: None,
    lambda self, another_name: None,
    lambda self, *args: None,
    lambda self, *args, **kwargs: None,
    lambda self, step, more=None: None,
]
WRONG = [
    (lambda self: None, "it takes no parameter 'step'"),
    (lambda self, step, more: None, "it needs a parameter 'more' that no caller passes"),
    (lambda self, step, *, more: None, "it needs a parameter 'more' that no caller passes"),
    (lambda self, *, step: None, "it takes no parameter 'step'"),
    (lambda self, **kwargs: None, "it takes no parameter 'step'"),
    (None, "plan is not a method"),
    (3, "plan is not a method"),
]


@pytest.mark.parametrize("plan", FINE)
def test_signatures_that_any_call_fits(plan: object) -> None:
    assert list(differences(policy(plan), SchedulerPolicy)) == []


@pytest.mark.parametrize(("plan", "said"), WRONG)
def test_signatures_that_some_call_does_not_fit(plan: object, said: str) -> None:
    (problem,) = differences(policy(plan), SchedulerPolicy)
    assert said in problem


def without_default(self: object, block: int, key: object, retain_until: object) -> bool:
    return True


def renamed_default(self: object, block: int, key: object, until: object = None) -> bool:
    return True


def method(self: object) -> int:
    return 0


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"publish": without_default}, "publish: parameter retain_until needs a default"),
        ({"publish": renamed_default}, "publish: parameter 3 must be called retain_until"),
        ({"available": method}, "available is a method, expected an attribute or property"),
        ({"take": property(method)}, "take is not a method, expected take(count: 'int')"),
    ],
)
def test_defaults_names_and_properties(members: dict[str, object], said: str) -> None:
    (problem,) = differences(type("Layer", (FreeList,), members)(8), BlockAllocator)
    assert said in problem


def test_keyword_only_and_open_parameters() -> None:
    def encode(self: object, text: str, add_special: bool = True) -> list[int]:
        return []

    def render(self: object, messages: object, *, tools: object = None) -> None: ...

    assert list(differences(type("T", (BytesTokenizer,), {"encode": encode})(), Tokenizer)) == []
    (problem,) = differences(type("T", (BytesTokenizer,), {"apply_chat_template": render})(), Tokenizer)
    assert "it must take **options" in problem


def test_serve_must_be_async() -> None:
    (slot,) = (slot for slot in SLOTS if slot.name == "frontend")

    class Blocking:
        def serve(self, client: object) -> None: ...

    assert list(differences(Blocking(), slot.protocol)) == ["serve must be `async def`"]


def test_the_error_names_provider_distribution_method_and_both_signatures() -> None:
    class Policy:
        def plan(self) -> None: ...

    with pytest.raises(ConfigError) as caught:
        check_component(candidate("scheduler_policy"), Policy(), "f.toml: [scheduler_policy] use")
    text = str(caught.value)
    assert text.startswith("f.toml: [scheduler_policy] use: part from corekit-x 1.2 built a ")
    assert "Expected plan(step: 'StepPlan') -> 'None', found plan() -> 'None'" in text


def test_an_optional_ability_must_be_right_if_it_is_there() -> None:
    class Accounting:
        def plan(self, step: StepPlan) -> None: ...
        def on_arrive(self) -> None: ...
        def on_progress(self, request: object, prompt_tokens: int, output_tokens: int) -> None: ...
        def on_leave(self, request: object) -> None: ...

    with pytest.raises(ConfigError, match="on_arrive: it takes no parameter 'request'"):
        check_component(candidate("scheduler_policy"), Accounting(), "use")
