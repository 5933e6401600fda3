"""Why this provider cannot run here: from the context, the configuration and the tensors' names. Reads no weights and imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from corekit.api import BuildContext, WeightSource

from .architecture import read_architecture
from .settings import Unsupported
from .tensors import UNREAD, Faults, shapes

DTYPES = ("float32", "bfloat16")
OTHERWISE = 'Use [model] use = "transformers"'


def refusals(context: BuildContext) -> Sequence[str]:
    return tuple(_of_the_place(context)) + tuple(_of_the_model(context.source))


def _of_the_place(context: BuildContext) -> Iterator[str]:
    if find_spec("corekit_llama._llama") is None:
        yield "its native code is missing: corekit was installed without a C++ compiler. Install one, then reinstall corekit"
    elif context.pool is None:
        yield "there is no thread pool: corekit was installed without a C++ compiler. Install one, then reinstall corekit"
    if context.device != "cpu":
        yield f'it runs on a CPU, and the device is {context.device}. {OTHERWISE}, or [engine] device = "cpu"'
    if context.dtype not in DTYPES:
        yield f'it computes in {" or ".join(DTYPES)}, and dtype is {context.dtype}. Set [model] dtype, or leave it at "auto"'


def _of_the_model(source: WeightSource | None) -> Iterator[str]:
    if source is None:
        yield "there is no source of weights. Set [model] source"
        return
    try:
        architecture = read_architecture(source)
    except Unsupported as reason:
        yield f"{reason}. {OTHERWISE}, which runs more families"
        return
    names = source.tensor_names
    known, there = shapes(architecture, names), set(names)
    faults = Faults(
        missing=[name for name in known if name not in there],
        unexpected=[name for name in names if name not in known and not name.endswith(UNREAD)],
    )
    if what := faults.told():
        yield f"its tensors are not those of {architecture.class_name}: {what}. {OTHERWISE}, which knows older names, or check the files"
