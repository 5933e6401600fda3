"""Everything that can be decided before weights are loaded: parts chosen and checked, the model's spec, the tokenizer.

Knows the order of assembly up to there; nothing of steps, requests or tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from corekit.api import (
    BuildContext,
    Frontend,
    LogitsProcessor,
    Model,
    ModelSpec,
    Observer,
    Sampler,
    SupportsObservers,
    Tokenizer,
    WeightSource,
)
from corekit.weights import open_source

from . import surroundings
from .catalog import Catalog, build_catalog
from .config import Config, load
from .discovery import discover, missing_requirements, unknown_blocks
from .errors import ConfigError, ended
from .facts import model_facts
from .parts import Part, Wish, check_refusals, settle, settle_all, wishes
from .pending import PendingClient
from .routes import mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A runnable choice of parts. Every part said that it can run here; nothing big was allocated."""

    config: Config
    catalog: Catalog
    source: WeightSource
    spec: ModelSpec
    context: BuildContext
    model: Model = field(repr=False)
    sampler: Sampler = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    frontends: tuple[Frontend, ...] = field(repr=False)
    processors: tuple[LogitsProcessor, ...] = field(repr=False)
    observers: tuple[Observer, ...] = field(repr=False)
    """Those of the configuration, then those of the frontends."""
    client: PendingClient = field(repr=False)
    """What the frontends have: it loads until there is an engine."""
    chosen: Mapping[str, tuple[Part, ...]]
    """Slot -> its parts; the allocator's layers top to bottom."""
    fallback: Part
    """The policy that plans when the chosen one fails."""

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for parts in self.chosen.values() for part in parts)

    def one(self, slot: str) -> Part:
        return self.chosen[slot][0]

    def summary(self) -> Iterator[str]:
        """One line a part: slot, provider, distribution, version, and why it is this one."""
        yield from self.table()[1:]

    def table(self) -> list[str]:
        """The summary below its head; the columns fit what stands in them."""
        rows = [("SLOT", "PROVIDER", "DISTRIBUTION", "WHY")]
        rows += [(part.slot, part.name, f"{part.distribution} {part.version}".strip(), part.why) for part in self.parts]
        slot, name, distribution = (max(least, *(len(row[at]) for row in rows)) for at, least in enumerate((18, 16, 24)))
        return [f"{row[0]:<{slot}} {row[1]:<{name}} {row[2]:<{distribution}} {row[3]}" for row in rows]


def compose(
    config: Config | Mapping[str, Any] | None = None,
    *,
    given: Mapping[str, Any] | None = None,
    catalog: Catalog | None = None,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], float],
    progress: bool = True,
) -> Composition:
    """Choose and check all parts. Raises ConfigError with everything that is wrong at the same stage, SourceError for the model.

    given: components, or providers, by slot; a sequence of them where a slot takes any number.
    """
    environ = os.environ if environ is None else environ
    if not isinstance(config, Config):
        config = load(environ=environ, given=config or {})
    given = {slot: part for slot, part in (given or {}).items() if part is not None}
    catalog = catalog or find_catalog(config)
    wanted = wishes(config, given, catalog, lambda: surroundings.device(config))
    settle_all([wish for wishes in wanted.values() for wish in wishes], catalog, config, environ)  # what can be told by name alone, all at once
    device = surroundings.device(config)
    surroundings.check_memory(config, device)
    source = _source(config, environ, progress, has_model="model" in given)
    context = BuildContext(
        source=source,
        device=device,
        dtype=surroundings.first_dtype(config, device, source),
        quantization=surroundings.first_quantization(config, source),
        threads=surroundings.threads(config),
        pool=surroundings.thread_pool(surroundings.threads(config)),
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=surroundings.step_limits(config, device).max_num_batched_tokens,
        clock=clock,
        seed=config.engine.seed,
        block_size=config.block_allocator.block_size,
    )
    return _choose(config, catalog, environ, wanted, context, source)


def find_catalog(config: Config) -> Catalog:
    """What is installed, under the rules of `[plugins]`. Raises ConfigError when something required is missing or broken."""
    discovery = discover(imports=config.plugins.import_, blocked=config.plugins.block)
    problems = [f"{config.place('plugins', 'require')}: {problem}" for problem in missing_requirements(config.plugins.require, discovery)]
    problems += [f"{config.place('plugins', 'block')}: {problem}" for problem in unknown_blocks(config.plugins.block, discovery)]
    named = {*config.plugins.import_}
    for failure in discovery.failures:
        if failure.plugin.module in named:
            advice = " Is its folder on the path? PYTHONPATH=. adds the current one." if "ModuleNotFoundError" in failure.reason else ""
            problems.append(f"{config.place('plugins', 'import')}: {ended(str(failure)) + advice if advice else failure}")
    if problems:
        raise ConfigError(problems)
    return build_catalog(discovery)


def _source(config: Config, environ: Mapping[str, str], progress: bool, *, has_model: bool) -> WeightSource:
    name = "none" if has_model and not config.is_given("model", "source") else config.model.source
    return open_source(name, cache_dir=surroundings.cache_dir(environ), allow_unpinned=config.model.allow_unpinned, progress=progress)


def _choose(
    config: Config, catalog: Catalog, environ: Mapping[str, str], wanted: Mapping[str, Sequence[Wish]], context: BuildContext, source: WeightSource
) -> Composition:
    """Model and spec first; then the rest, which may refuse what the spec says."""
    model_part = settle(wanted["model"][0], catalog, config, environ, context)
    assert model_part is not None
    check_refusals([model_part], context)
    model: Model = model_part.build(context)
    spec = model.spec
    dtype, kv_dtype = surroundings.final_dtypes(config, spec, context.dtype)
    context = replace(
        context,
        model_spec=spec,
        dtype=dtype,
        kv_dtype=kv_dtype,
        quantization=surroundings.final_quantization(config, model, f"the provider {model_part.name}"),
        max_model_len=surroundings.max_model_len(config, spec),
    )
    rest = [wish for slot, wishes in wanted.items() if slot != "model" for wish in wishes]
    parts = settle_all(rest, catalog, config, environ, context)
    check_refusals(parts, context)
    chosen = {slot: tuple(part for part in (*parts, model_part) if part.slot == slot) for slot in wanted}
    sampler: Sampler = chosen["sampler"][0].build(context)
    tokenizer: Tokenizer = chosen["tokenizer"][0].build(context)
    context = replace(context, tokenizer=tokenizer)
    fallback = settle(Wish(slot="scheduler_policy", name="fcfs", place="the fallback policy"), catalog, config, environ, context)
    assert fallback is not None
    client = PendingClient(model_facts(source, model_part, context, sampler), tokenizer)
    frontends: tuple[Frontend, ...] = tuple(part.build(context) for part in chosen["frontend"])
    mount(chosen["http_route"], context, client, frontends)
    observers: tuple[Observer, ...] = tuple(part.build(context) for part in chosen["observer"])
    return Composition(
        config=config,
        catalog=catalog,
        source=source,
        spec=spec,
        context=context,
        model=model,
        sampler=sampler,
        tokenizer=tokenizer,
        frontends=frontends,
        processors=tuple(part.build(context) for part in chosen["logits_processor"]),
        observers=(*observers, *(observer for frontend in frontends if isinstance(frontend, SupportsObservers) for observer in frontend.observers)),
        client=client,
        chosen=chosen,
        fallback=fallback,
    )
