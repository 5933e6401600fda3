"""How a part of slot `attention_backend` is built for its laws, and the laws of what it may leave out. Knows no implementation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from corekit.api import BuildContext, LayerSpec, ModelSpec

from .attention_rig import AttentionRig, Row
from .kit import Kit

NUM_BLOCKS, NUM_TOKENS, MAX_TOKENS = 24, 96, 1024
"""A pool has so many blocks at least, and of small blocks so many that so many tokens fit."""
FEATURES: Final = frozenset({"window", "chunk", "soft_cap", "sinks", "kv_sharing", "value_dim"})


class FeatureLaws(Kit):
    """What a backend can do is declared; every law is asked in every dtype, and in every block size in turn."""

    slot = "attention_backend"
    device: ClassVar[str] = "cpu"
    dtypes: ClassVar[Sequence[str]] = ("float32",)
    """Of queries and of the cache alike."""
    tolerances: ClassVar[Mapping[str, float]] = {"float64": 1e-10, "float32": 1e-5, "float16": 4e-3, "bfloat16": 2e-2}
    """Largest difference to dense attention in float64, relative to the largest value of a result."""
    block_sizes: ClassVar[Sequence[int]] = (4, 16)
    head_dims: ClassVar[Sequence[int]] = (8, 16)
    """Dimensions of heads that it can do; two of them for `value_dim`."""
    features: ClassVar[frozenset[str]] = FEATURES
    """What of a LayerSpec it can do. The provider's `refuse` has to name the rest."""

    def context(self) -> BuildContext:
        return self._with((self.spec(),), BuildContext(device=self.device, dtype=self.dtypes[0], kv_dtype=self.dtypes[0], block_size=self.block_sizes[0]))

    def spec(self, **changes: Any) -> LayerSpec:
        """A layer of four heads in two groups, and what a law changes of it."""
        dim = self.head_dims[0]
        plain = LayerSpec(num_heads=4, num_kv_heads=2, key_dim=dim, value_dim=dim, scale=dim**-0.5)
        return replace(plain, **changes)

    def _with(self, layers: tuple[LayerSpec, ...], context: BuildContext) -> BuildContext:
        """The context of a model with these layers."""
        model = ModelSpec(architecture="kit", layers=layers, vocab_size=64, context_length=MAX_TOKENS, hidden_size=32, dtype=context.dtype)
        return replace(context, model_spec=model, max_model_len=MAX_TOKENS, max_num_seqs=16, max_num_batched_tokens=256)

    def rig(self, *layers: LayerSpec, dtype: str | None = None, block_size: int | None = None, seed: int = 0, num_tokens: int = NUM_TOKENS) -> AttentionRig:
        """A fresh backend for these layers (one plain layer if none are given), with its pools allocated."""
        layers, dtype, block_size = layers or (self.spec(),), dtype or self.dtypes[0], block_size or self.block_sizes[0]
        context = replace(self._with(layers, self.context()), dtype=dtype, kv_dtype=dtype, block_size=block_size)
        backend, num_blocks = self.build(context), max(NUM_BLOCKS, -(-num_tokens // block_size))
        return AttentionRig(backend, layers, block_size=block_size, num_blocks=num_blocks, dtype=dtype, device=context.device, seed=seed)

    def rigs(self, *layers: LayerSpec, num_tokens: int = NUM_TOKENS) -> Iterator[AttentionRig]:
        """One for each dtype, with another block size each time, and for each block size."""
        for at in range(max(len(self.dtypes), len(self.block_sizes))):
            dtype, block_size = self.dtypes[at % len(self.dtypes)], self.block_sizes[at % len(self.block_sizes)]
            yield self.rig(*layers, dtype=dtype, block_size=block_size, seed=at, num_tokens=num_tokens)

    def allowed(self, rig: AttentionRig) -> float:
        return self.tolerances[str(rig.dtype).removeprefix("torch.")]

    def close(self, rig: AttentionRig, rows: Sequence[tuple[Row, int]], said: str, *, slack: float = 1.0, **layout: Any) -> None:
        """A step of these rows equals dense attention."""
        error, allowed = rig.step(rows, **layout), self.allowed(rig) * slack
        assert error <= allowed, (
            f"{said}: the result differs from dense attention by {error:.3g}, allowed is {allowed:.3g} ({rig.dtype}, blocks of {rig.block_size})"
        )

    def grown(self, *layers: LayerSpec, said: str) -> None:
        """Two prompts by pieces and as a whole, then decodes of both: longer than any window or chunk of the kit."""
        for rig in self.rigs(*layers):
            first, second = rig.row(), rig.row()
            for rows in ([(first, 7)], [(first, 6), (second, 11)], [(first, 1), (second, 1)], [(second, 1), (first, 3)], [(first, 1), (second, 1)]):
                self.close(rig, rows, said)

    def _featured(self, feature: str) -> tuple[LayerSpec, ...]:
        if feature == "kv_sharing":
            return self.spec(), self.spec(), self.spec(kv_from_layer=0)
        changes: Mapping[str, Mapping[str, Any]] = {
            "window": {"window": 5},
            "chunk": {"chunk": 5},
            "soft_cap": {"soft_cap": 0.7},
            "sinks": {"sinks": True},
            "value_dim": {"value_dim": self.head_dims[1] if len(self.head_dims) > 1 else 2 * self.head_dims[0]},
        }
        return (self.spec(**changes[feature]),)

    def _declared(self, feature: str, said: str) -> None:
        if feature in self.features:
            self.grown(*self._featured(feature), said=said)

    def test_window(self) -> None:
        """window: a query sees the last `window` positions only, its own included."""
        self._declared("window", "a layer with window = 5, which counts the query's own position")

    def test_chunk(self) -> None:
        """chunk: a query sees the positions of its own chunk, those p with p // chunk equal to its own, up to itself."""
        self._declared("chunk", "a layer with chunk = 5, whose chunks begin at positions 0, 5, 10 ...")

    def test_soft_cap(self) -> None:
        """soft_cap: scores become soft_cap * tanh(score / soft_cap), after the scale."""
        self._declared("soft_cap", "a layer with soft_cap = 0.7, applied after the scale and before the mask")

    def test_sinks(self) -> None:
        """sinks: one more score per head takes part in the softmax and has no value."""
        self._declared("sinks", "a layer with sinks, one score per head that takes weight and gives nothing")

    def test_kv_of_an_earlier_layer(self) -> None:
        """kv_from_layer: the layer reads what that earlier layer wrote, this step's tokens included, and writes nothing."""
        self._declared("kv_sharing", "layer 2 with kv_from_layer = 0")

    def test_values_of_another_dimension(self) -> None:
        """value_dim may differ from key_dim; the result has value_dim."""
        self._declared("value_dim", f"a layer whose key_dim is {self.head_dims[0]} and value_dim is not")

    def test_what_layers_ask_for_together(self) -> None:
        """Layers of one model differ, and each may ask for several features: what one asks for holds beside the others, and for it alone."""
        asked = {"window": 5, "soft_cap": 0.7, "sinks": True}
        first = {name: value for name, value in asked.items() if name in self.features}
        others = [{"chunk": 4, **first}] if "chunk" in self.features else []
        others += [{"kv_from_layer": 0}] if "kv_sharing" in self.features else []
        layers = tuple(self.spec(**changes) for changes in (first, {}, *others))
        if not list(self.candidate().provider.refuse(self._with(layers, self.context()))):
            self.grown(*layers, said=f"one of four layers, which ask for {first}, nothing, {', '.join(map(str, others))}")

    def test_what_it_cannot_do_is_refused(self) -> None:
        """What is not in `features` is refused by the provider, with a reason, before anything is built: never computed as something else."""
        unknown = self.features - FEATURES
        assert not unknown, f"features are {sorted(FEATURES)}, not {sorted(unknown)}"
        for feature in sorted(FEATURES - self.features):
            reasons = list(self.candidate().provider.refuse(self._with(self._featured(feature), self.context())))
            assert reasons, f"features leaves out {feature!r}, but refuse(context) has no reason against a model with it: {self._featured(feature)[-1]}"
