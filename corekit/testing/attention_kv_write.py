"""The law of backends whose pools a model may write itself: a write through the view is a write by `run`. Knows no implementation."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corekit.api import KvTensor, KvView, SupportsKvWrite

from .attention_features import FeatureLaws
from .attention_rig import AttentionRig

Views = Sequence[KvView | None]
KINDS: Mapping[int, Any] = MappingProxyType({2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64})


class KvWriteLaws(FeatureLaws):
    """For backends that show `kv_views`; others have nothing to prove."""

    def test_a_model_may_write_keys_and_values_itself(self) -> None:
        """kv_views say where run writes: a model that writes there, and hands run no keys and values, gets what run gives that is handed them."""
        if self.context().device != "cpu":
            return  # an address in another device's memory cannot be followed from here
        layers = [self.spec()]
        layers += [self.spec(kv_from_layer=0)] if "kv_sharing" in self.features else []
        layers += self._featured("value_dim") if "value_dim" in self.features else []
        for by_run, by_view in zip(self.rigs(*layers), self.rigs(*layers), strict=True):
            if not isinstance(by_run.backend, SupportsKvWrite) or not isinstance(by_view.backend, SupportsKvWrite):
                return
            _check_views(by_view, by_view.backend.kv_views)
            self._compare(by_run, by_run.backend.kv_views, by_view, by_view.backend.kv_views)

    def _compare(self, by_run: AttentionRig, read: Views, by_view: AttentionRig, written: Views) -> None:
        layout = by_run.layout([(by_run.row(), 1), (by_run.row(), by_run.block_size + 3), (by_run.row(), 2)])
        slots, of_run, of_view = layout.groups[0].slot_mapping, by_run.backend.plan(layout), by_view.backend.plan(layout)
        for layer, (there, here) in enumerate(zip(read, written, strict=True)):
            inputs = by_run.inputs(layer, layout.num_tokens)
            wanted = by_run.run(layer, inputs, of_run).out
            if there is not None and here is not None and inputs.key is not None and inputs.value is not None:
                for source, target, given in ((there.key, here.key, inputs.key), (there.value, here.value, inputs.value)):
                    kind = "keys" if given is inputs.key else "values"
                    memory, at = _elements(there, source, slots, given.shape[2])
                    assert (memory[at] == _bits(given)).all(), f"layer {layer}: {kind} that run wrote are not where kv_views says"
                    memory, at = _elements(here, target, slots, given.shape[2])
                    memory[at] = _bits(given)
            out = by_view.run(layer, replace(inputs, key=None, value=None), of_view).out
            assert torch.equal(out, wanted), f"layer {layer}: keys and values written through kv_views give another result than those that run wrote"


def _check_views(rig: AttentionRig, views: Views) -> None:
    assert isinstance(rig.backend, SupportsKvWrite)
    assert rig.backend.kv_views is views, "kv_views is another object each time"
    assert len(views) == len(rig.layers), f"kv_views has {len(views)} entries for {len(rig.layers)} layers"
    for layer, (spec, view) in enumerate(zip(rig.layers, views, strict=True)):
        assert (view is None) == (spec.kv_from_layer is not None), f"layer {layer}: a view is None exactly for a layer without a cache of its own"
        if view is None:
            continue
        told = (view.dtype, view.block_size, view.num_blocks, view.num_kv_heads, view.key_dim, view.value_dim)
        wanted = (str(rig.dtype).removeprefix("torch."), rig.block_size, rig.num_blocks + 1, spec.num_kv_heads, spec.key_dim, spec.value_dim)
        assert told == wanted, f"layer {layer}: the view says {told}, expected {wanted}: dtype, block_size, num_blocks with the null block, kv heads, dims"
        for tensor in (view.key, view.value):
            assert min(tensor.token_group, tensor.dim_group) == 1, f"layer {layer}: both groups of {tensor} are more than 1"


def _elements(view: KvView, tensor: KvTensor, slots: Tensor, num_dims: int) -> tuple[Any, Any]:
    """The pool's memory as whole numbers, and where in it the numbers [tokens, heads, dims] of these slots are."""
    kind = KINDS[getattr(torch, view.dtype).itemsize]
    block, token = (part[:, None, None] for part in (slots.numpy() // view.block_size, slots.numpy() % view.block_size))
    head, dim = np.arange(view.num_kv_heads)[:, None], np.arange(num_dims)
    at = block * tensor.block_stride + head * tensor.head_stride
    at = at + token // tensor.token_group * tensor.token_stride + token % tensor.token_group
    at = at + dim // tensor.dim_group * tensor.dim_stride + dim % tensor.dim_group
    return np.ctypeslib.as_array((kind * (int(at.max()) + 1)).from_address(tensor.address)), at


def _bits(given: Tensor) -> Any:
    return given.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[given.itemsize]).numpy()
