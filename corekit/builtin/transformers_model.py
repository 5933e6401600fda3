"""The model `transformers`: any decoder-only language model of that library, through its attention interface, on packed steps.

Breadth is its purpose: the library's own modules compute everything but attention. Knows nothing of KV blocks or of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from corekit.api import Attend, ModelInputs, ModelSpec, Shard, WeightSource

from .transformers_attention import ATTENTION, BlankStep, PackedStep, Unsupported
from .transformers_family import find_body, find_family, probe, split

MAX_NAMED = 8
"""Tensors named in one error."""


def refusals(source: WeightSource) -> Sequence[str]:
    """Why this library cannot run the source's model here, as far as its configuration tells; the constructor looks closer."""
    try:
        find_family(source)
    except Unsupported as reason:
        return (str(reason),)
    return ()


class TransformersModel:
    """Slot `model`. Its spec is what the model's own layers were seen to do; its logits are those of the library's own head.

    The constructor reads no weights and raises Unsupported, a ValueError, for what `refusals` names and for what only a trial
    of the layers shows.
    """

    def __init__(self, source: WeightSource, *, device: str, dtype: str) -> None:
        self._family = find_family(source)
        self._spec = probe(self._family, source)
        self._device = device
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._body: nn.Module | None = None
        self._head: nn.Module | None = None

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def load(self, weights: WeightSource, shard: Shard) -> None:
        if shard.size != 1:
            raise ValueError(f"the transformers model runs on one rank, and {shard.size} were asked for")
        if self._body is not None:
            raise ValueError("the weights are loaded already")
        model = self._read(weights)
        with torch.inference_mode():
            self._body, self._head = self._checked_parts(model)

    def _read(self, weights: WeightSource) -> Any:
        """The library's own loader: it knows each family's older names, fused experts and tied tensors."""
        config = self._family.config
        config._attn_implementation = ATTENTION
        tensors = dict(weights.tensors())
        with _no_progress_bar():
            model, report = self._family.model_class.from_pretrained(
                None, config=config, state_dict=tensors, dtype=self._dtype, output_loading_info=True, ignore_mismatched_sizes=True
            )
        faults = {
            "missing": sorted(report["missing_keys"]),
            "unexpected": sorted(report["unexpected_keys"]),
            "of another shape": sorted(f"{name} {tuple(found)}, expected {tuple(wanted)}" for name, found, wanted in report["mismatched_keys"]),
        }
        if any(faults.values()):
            told = "; ".join(f"{len(names)} {kind}: {_some(names)}" for kind, names in faults.items() if names)
            raise ValueError(f"{weights.name}: its tensors are not those of {self.spec.architecture}: {told}. The files are incomplete or of another model.")
        return model.to(self._device).requires_grad_(False).eval()

    def _checked_parts(self, model: Any) -> tuple[nn.Module, nn.Module]:
        """(body, head), after one blank pass in which they gave together what the whole model gives."""
        ids = torch.arange(2, device=self._device).remainder(self.spec.vocab_size)[None]
        call = {"input_ids": ids, "position_ids": torch.arange(2, device=self._device)[None], "use_cache": False, "corekit_step": BlankStep()}
        hidden: list[Tensor] = []
        watch = find_body(model).register_forward_hook(lambda module, given, output: hidden.append(output.last_hidden_state))
        whole = model(**call).logits
        watch.remove()
        body = split(model)
        parts = model(inputs_embeds=hidden[0], use_cache=False).logits
        if not torch.equal(whole, parts):
            raise ValueError(f"{self.spec.architecture} makes its logits from more than its hidden states, so this engine cannot compute them by rows")
        return body, model

    @torch.inference_mode()
    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        assert self._body is not None
        hidden: Tensor = self._body(
            input_ids=inputs.token_ids[None], position_ids=inputs.positions[None], use_cache=False, corekit_step=PackedStep(attend)
        ).last_hidden_state
        return hidden[0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        assert self._head is not None
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0]


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """The source shows its progress while it reads; what transformers does with the tensors then takes no time."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _some(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
