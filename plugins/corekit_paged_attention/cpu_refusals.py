"""Why `cpu-paged` cannot run somewhere, each reason with the next step. Imports neither torch nor the kernels, except to see whether they are there."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from corekit.api import BuildContext, LayerSpec

from .kv_layout import ITEM_SIZES

MAX_DIM = 1024
MAX_BLOCK_SIZE = 4096
OTHERWISE = '[attention_backend] use = "torch" can'


def refusals(context: BuildContext) -> list[str]:
    if context.device != "cpu":
        return [f"it computes on a CPU, and the device is {context.device!r}"]
    if find_spec("._cpu_paged", __package__) is None:
        return ["its native code is missing: corekit was installed without a C++ compiler. Install one, then reinstall corekit"]
    reasons = []
    if context.pool is None:
        reasons.append("there is no pool of threads in this context: corekit was installed without native code, or the part was built outside an engine")
    if context.kv_dtype not in ITEM_SIZES:
        reasons.append(f"its cache is float32 or bfloat16, not {context.kv_dtype}; {OTHERWISE}")
    if context.dtype not in ITEM_SIZES:
        reasons.append(f"it computes float32 and bfloat16, and the model computes {context.dtype}; {OTHERWISE}")
    if context.block_size % 8 or not 8 <= context.block_size <= MAX_BLOCK_SIZE:
        reasons.append(f"block_size must be a multiple of 8 up to {MAX_BLOCK_SIZE}, such as 16, and is {context.block_size}")
    layers = () if context.model_spec is None else context.model_spec.layers
    seen: set[str] = set()
    for index, spec in enumerate(layers):
        for reason in _of_layer(index, spec, layers, context.kv_dtype):
            if reason not in seen:  # said once, of the first layer it holds for
                seen.add(reason)
                reasons.append(f"layer {index}: {reason}")
    return reasons


def _of_layer(index: int, spec: LayerSpec, layers: tuple[LayerSpec, ...], kv_dtype: str) -> Iterator[str]:
    kind: str = spec.kind
    if kind != "causal":
        yield f"attention is of kind {kind!r}, and it computes 'causal' only"
    if spec.num_heads % spec.num_kv_heads:
        yield f"{spec.num_heads} heads do not divide into {spec.num_kv_heads} groups of equal size"
    if not (1 <= spec.key_dim <= MAX_DIM and 1 <= spec.value_dim <= MAX_DIM):
        yield f"heads have {spec.key_dim} and {spec.value_dim} dims, and it computes 1 to {MAX_DIM}; {OTHERWISE}"
    if spec.key_dim % 2 and kv_dtype == "bfloat16":
        yield f'keys have {spec.key_dim} dims, and a bfloat16 cache holds pairs of them; kv_dtype = "float32" can'
    if spec.group:
        yield f"it is in group {spec.group} of block tables, and there is one group"
    if spec.kv_from_layer is not None:
        source = layers[spec.kv_from_layer] if 0 <= spec.kv_from_layer < index else None
        if source is None or source.kv_from_layer is not None:
            yield f"kv_from_layer {spec.kv_from_layer} is not an earlier layer with a cache of its own"
        elif (source.num_kv_heads, source.key_dim, source.value_dim) != (spec.num_kv_heads, spec.key_dim, spec.value_dim):
            yield f"the cache of layer {spec.kv_from_layer} has other heads or dims"
