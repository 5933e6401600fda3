"""Binds csrc/linear and csrc/llama. Addresses are checked for null and alignment, sizes and ranges for what they mean; ValueError otherwise."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from corekit.api import KvView

Floats = npt.NDArray[np.float32]

class Matrix:
    """Packed weights."""

    @staticmethod
    def pack(parts: Sequence[tuple[npt.NDArray[np.uint8], str]], format: str, interleaved: bool = False, pool_address: int = 0) -> Matrix:
        """parts: (rows [rows, bytes per row], GGUF's name of their type). format: "nibble", "byte", "channel", "bf16" or "f32".

        pool_address 0: on this thread.
        """

    def unpack(self) -> Floats:
        """[num_outputs, num_inputs]: what the kernels multiply with."""

    @property
    def format(self) -> str: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def num_inputs(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

def multiply(
    matrix: Matrix,
    x: Floats,
    to: Floats,
    *,
    kind: str = "store",
    bias: Floats | None = None,
    instruction_set: str = "auto",
    prepared: str = "wanted",
    pool_address: int = 0,
    by_amx: bool = False,
) -> None:
    """to = x times the matrix, by `kind` "store", "add" or "silu_mul".

    by_amx, for tests: in tiles of AMX whatever the number of rows, emulated on instruction sets that have none.
    """

def instruction_sets() -> list[str]:
    """Those that this machine runs, the best last."""

class Decoder:
    """Weights and buffers of one model. One thread at a time. A step: start, advance after the attention of each layer but the last, finish.

    What is set ends a step that has started.
    """

    def __init__(
        self,
        *,
        pool: int,
        instruction_set: str,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        vocab_size: int,
        num_layers: int,
        num_positions: int,
        norm_epsilon: float,
        bf16: bool,
    ) -> None:
        """pool: address of the rank's `corekit_pool`, which must live as long. bf16: what attention reads and gives; else float32."""

    def set_layer(
        self,
        layer: int,
        *,
        qkv: Matrix,
        output: Matrix,
        gate_up: Matrix,
        down: Matrix,
        input_norm: Floats,
        mlp_norm: Floats,
        query_norm: Floats | None = None,
        key_norm: Floats | None = None,
        qkv_bias: Floats | None = None,
        output_bias: Floats | None = None,
        gate_bias: Floats | None = None,
        up_bias: Floats | None = None,
        down_bias: Floats | None = None,
        rotates: bool = True,
    ) -> None: ...
    def set_ends(self, *, embedding: Matrix, head: Matrix | None, final_norm: Floats) -> None:
        """head: None where it is the embedding."""

    def set_rotary(self, frequencies: Sequence[float], scale: float) -> None:
        """Radians per position, head_dim / 2 of them; cosines and sines are multiplied by scale."""

    def set_kv(self, views: Sequence[KvView | None]) -> None:
        """Where keys and values go, one for each layer; none at all: they are passed."""

    def start(self, token_ids: int, positions: int, slots: int, num_tokens: int, query: int, key: int, value: int) -> None:
        """Addresses: of int64 [num_tokens] three times (slots 0 where no pool is written), then what the first layer's attention reads."""

    def advance(self, layer: int, attended: int, query: int, key: int, value: int) -> None:
        """attended: what attention gave for `layer`; then what the next layer's attention reads (key and value 0 where its pool is written)."""

    def finish(self, attended: int, hidden: int) -> None:
        """hidden: of float32 [num_tokens, hidden_size]."""

    def logits(self, hidden: int, num_rows: int, to: int) -> None:
        """float32 [num_rows, hidden_size] -> float32 [num_rows, vocab_size]."""

    def take_seconds(self) -> dict[str, float]:
        """What the calling thread spent in each phase since the last call."""
