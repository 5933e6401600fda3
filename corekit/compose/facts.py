"""What may be told about the model before its weights are there."""

from __future__ import annotations

import re
import time
from pathlib import Path

from corekit.api import BuildContext, ModelFacts, Sampler, SupportsLogprobs, WeightSource

from .parts import Part


def model_facts(source: WeightSource, part: Part, context: BuildContext, sampler: Sampler) -> ModelFacts:
    """Its context is what is configured: a pool that turns out smaller promises less."""
    assert context.model_spec is not None
    name = part.name if source.format == "none" else _short_name(source.name)
    return ModelFacts(
        name=name,
        aliases=(source.name,) if source.name not in (name, "none") else (),
        source=source.name,
        max_model_len=context.max_model_len,
        vocab_size=context.model_spec.vocab_size,
        supports_logprobs=isinstance(sampler, SupportsLogprobs),
        created=int(time.time()),
    )


def _short_name(source: str) -> str:
    """What a caller is likely to type: the name of a folder, file or package, a hub id as it is."""
    if source.startswith("pypi:"):
        return re.split("[=#]", source.removeprefix("pypi:"))[0]
    path = Path(source)
    return (path.stem if path.suffix == ".gguf" else path.name) if path.exists() else source
