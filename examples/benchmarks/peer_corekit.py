"""corekit as one of the engines that are compared: in this process, through the client that its frontends use.

python peer_corekit.py --workload workload.json --quantization stored --model llama --attention cpu-paged
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Any

import peer_rows

from corekit import __version__
from corekit.bench.ask import ask_engine, check_fits, vocab_size
from corekit.bench.verbs import UNLIMITED_QUEUE
from corekit.compose.assemble import assemble
from corekit.compose.assembly import Assembly
from corekit.compose.config import Config, load

SETTINGS = {
    "dtype": ("model.dtype", "float32, bfloat16 ...; auto: the machine's own choice"),
    "quantization": ("model.quantization", "what linear layers are computed on: none, stored, int8, auto"),
    "threads": ("engine.threads", "0: the cores that this process may use"),
    "model": ("model.use", "provider of the model"),
    "attention": ("attention_backend.use", "provider of attention"),
    "kv-dtype": ("block_allocator.kv_dtype", "of the KV cache"),
}
"""Option -> the key of the configuration that it sets, and what it means."""


def parser() -> argparse.ArgumentParser:
    found = peer_rows.arguments("Measures corekit in this process and appends rows.")
    found.add_argument("--source", help="where weights come from: a folder, a .gguf file, a hub id, a package; without it the demo model")
    for name, (_, text) in SETTINGS.items():
        found.add_argument(f"--{name}", type=int if name == "threads" else str, help=text)
    found.add_argument("--set", dest="overrides", action="append", default=[], metavar="TABLE.KEY=VALUE", help="any other value of the configuration")
    found.add_argument("--prompts", choices=["ids", "text"], help="form in which prompts are sent; without it ids where there are any")
    found.add_argument("--engine", default="corekit", help="what the rows call it")
    return found


def configured(options: argparse.Namespace) -> Config:
    given: dict[str, Any] = dict(UNLIMITED_QUEUE)  # a workload is sent whole
    for name, (key, _) in SETTINGS.items():
        value = getattr(options, name.replace("-", "_"))
        if value is not None:
            given[key] = value
    return load(overrides=options.overrides, environ=os.environ, source=options.source, options=given)


def driver(assembly: Assembly, options: argparse.Namespace) -> peer_rows.Driver:
    context = assembly.composition.context
    dtype = str(context.dtype).removeprefix("torch.")
    return peer_rows.Driver(
        engine=options.engine,
        precision=dtype if context.quantization in (None, "none") else str(context.quantization),
        ask=ask_engine(assembly.client, lambda new: None),
        about={"version": __version__, "threads": context.threads, "args": " ".join(_settings(assembly, options))},
    )


def _settings(assembly: Assembly, options: argparse.Namespace) -> Iterator[str]:
    """The parts that compute, chosen or asked for, and every value that was set."""
    for slot in ("model", "attention_backend"):
        yield f"{slot.partition('_')[0]}={assembly.composition.one(slot).name}"
    yield from options.overrides


def main() -> None:
    options = parser().parse_args()
    reps = peer_rows.repetitions(options)
    with assemble(configured(options), frontends=()) as assembly:
        chosen = peer_rows.workloads(options, vocab_size(assembly.client), options.prompts)
        for workload in chosen:
            check_fits(assembly.client, workload)
        asyncio.run(peer_rows.run(driver(assembly, options), chosen, reps, options))


if __name__ == "__main__":
    sys.exit(peer_rows.told(main))
