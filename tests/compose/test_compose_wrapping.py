"""A part may wrap that of another provider of its slot: `BuildContext.build`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from corekit import assemble
from corekit.api import BuildContext, Provider
from corekit.compose.catalog import Candidate, build_catalog
from corekit.compose.discovery import Discovery, Plugin
from corekit.compose.errors import ConfigError
from corekit.compose.parts import Part

TABLES: Mapping[str, Any] = {"model": {"source": "none", "use": "fingerprint"}, "tokenizer": {"use": "bytes"}, "block_allocator": {"num_blocks": 8}}


class Wrapper:
    """Delegates everything."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def wrapping(inner: str, **options: Any) -> Provider[Any]:
    return Provider(name="wrapper", api=1, summary="wraps another", build=lambda context, _: Wrapper(context.build(inner, options)))


def worker_attention(provider: Provider[Any]) -> Any:
    with assemble(TABLES, environ={}, frontends=[], attention_backend=provider) as assembly:
        return assembly.executor._worker._runner._attention  # type: ignore[attr-defined]


def test_a_part_wraps_another_by_name_with_checked_options() -> None:
    wrapper = worker_attention(wrapping("torch", poison=True))
    assert type(wrapper).__name__ == "Wrapper"
    assert type(wrapper.inner).__name__ == "TorchAttention"


@pytest.mark.parametrize(
    ("inner", "options", "message"),
    [
        ("torhc", {}, r"what wrapper from \(python\) wraps = 'torhc': no such provider. Did you mean 'torch'\? Available: cpu-paged, torch"),
        ("torch", {"poisn": True}, r"wraps = 'torch', options.poisn: unknown key. Did you mean 'poison'\?"),
    ],
)
def test_what_is_wrong_with_the_wrapped_part_is_said(inner: str, options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        worker_attention(wrapping(inner, **options))


def part(name: str, *others: Provider[Any]) -> Part:
    plugin = Plugin(distribution="dist", version="1", entry="e", module="m")
    candidates = [Candidate(slot="sampler", provider=provider, plugin=plugin) for provider in others]
    (mine,) = [candidate for candidate in candidates if candidate.name == name]
    catalog = build_catalog(Discovery(providers=(), failures=()), candidates)
    return Part(candidate=mine, options=None, place="[sampler] use", why="named", catalog=catalog)


def named(name: str, inner: str, **more: Any) -> Provider[Any]:
    return Provider(name=name, api=1, summary="", build=lambda context, _: Wrapper(context.build(inner, {})), **more)


def test_parts_that_wrap_each_other_without_end_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"wraps = 'a': it would wrap itself without end: dist:a in dist:b in dist:a. Name another provider"):
        part("a", named("a", "b"), named("b", "a")).build(BuildContext())


def test_what_cannot_run_here_cannot_be_wrapped() -> None:
    with pytest.raises(ConfigError, match=r"\[sampler\] use: what a from dist 1 wraps: b from dist 1 cannot run here: no GPU"):
        part("a", named("a", "b"), named("b", "c", refuse=lambda context: ("no GPU",))).build(BuildContext())


def test_a_context_of_nobody_says_so() -> None:
    with pytest.raises(LookupError, match="this context knows no other providers"):
        BuildContext().build("torch", {})
