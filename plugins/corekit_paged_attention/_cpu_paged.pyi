"""Binds csrc/attention. Addresses are of memory that the caller keeps alive; arguments that do not fit raise ValueError."""

from collections.abc import Sequence

class Plan:
    """A step's rows, tables and slots, checked and copied."""

    @property
    def num_tokens(self) -> int: ...

class PagedAttention:
    """Layers of one cache. Calls take turns, and release Python's lock while they compute."""

    def __init__(self, pool: int, instruction_set: str, dtype: str, block_size: int, num_blocks: int, num_host_blocks: int) -> None:
        """pool: address of the `corekit_pool`. dtype: of the cache, "float32" or "bfloat16". num_blocks: the null block included."""

    def add_layer(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        key_dim: int,
        value_dim: int,
        scale: float,
        soft_cap: float,
        window: int,
        chunk: int,
        sinks: bool,
        from_layer: int,
        device: int,
        device_bytes: int,
        host: int,
        host_bytes: int,
    ) -> None:
        """0 for no soft cap, window or chunk; from_layer below 0: the layer has a cache of its own, at these addresses."""

    def plan(
        self, num_rows: int, num_tokens: int, starts: int, seq_lens: int, blocks: int, width: int, row_stride: int, column_stride: int, slots: int, /
    ) -> Plan:
        """Addresses of int64 numbers: starts [rows + 1], seq_lens [rows], blocks [rows, width] with strides in elements, slots [tokens]."""

    def run(
        self,
        layer: int,
        plan: Plan,
        query_halves: bool,
        query: int,
        query_token: int,
        query_head: int,
        kv_halves: bool,
        key: int,
        key_token: int,
        key_head: int,
        value: int,
        value_token: int,
        value_head: int,
        sinks: int,
        out: int,
        /,
    ) -> None:
        """Tensors of the plan's tokens, dims side by side, other strides in elements; halves: bfloat16, else float32. key 0: nothing is written."""

    def copy(self, copies: Sequence[tuple[int, bool, int, bool]], /) -> None:
        """(source, on host, target, on host), made in this order in every layer."""

def instruction_sets() -> list[str]:
    """Those that this processor runs, the best last."""
