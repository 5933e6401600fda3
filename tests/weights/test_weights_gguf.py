"""GGUF files: tensors, configuration and refusals, against files written by the gguf package, and the demo model."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Kind
from weights_files import HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB, WIDTH, llama_tensors, write_gguf

from corekit.api import Shard, SupportsStored, WeightSource
from corekit.builtin.transformers_model import TransformersModel
from corekit.testing.dense_rows import DenseRows, Piece
from corekit.weights import SourceError, open_source
from corekit.weights.gguf_header import read_header
from corekit.weights.stored import Stored


def opened(path: Path) -> WeightSource:
    return open_source(str(path), cache_dir=path.parent / "cache", progress=False)


@pytest.mark.parametrize("tied", [True, False])
def test_float_tensors_come_back_as_they_were(tmp_path: Path, tied: bool) -> None:
    written = llama_tensors(tied=tied, bias=True)
    source = opened(write_gguf(tmp_path / "m.gguf", written))
    read = dict(source.tensors())
    assert source.format == "gguf"
    assert set(source.tensor_names) == set(read) == set(written)
    assert source.config["tie_word_embeddings"] is tied
    assert source.config["attention_bias"] is True
    assert source.num_bytes == sum(array.nbytes for array in written.values())
    for name, array in written.items():
        assert read[name].dtype == torch.float32
        np.testing.assert_array_equal(read[name].numpy(), array)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_only_the_llama_family_is_reordered(tmp_path: Path, architecture: str) -> None:
    written = llama_tensors()
    source = opened(write_gguf(tmp_path / "m.gguf", written, architecture=architecture))
    for name, tensor in source.tensors():
        np.testing.assert_array_equal(tensor.numpy(), written[name])


@pytest.mark.parametrize(("architecture", "bias"), [("llama", False), ("qwen2", True)])
def test_the_model_of_a_file_gives_the_librarys_logits(tmp_path: Path, architecture: str, bias: bool) -> None:
    """Configuration, names, order of rows, biases and the tied head together: what is read from the file is the model that was written."""
    written = llama_tensors(bias=bias)
    source = opened(write_gguf(tmp_path / "m.gguf", written, architecture=architecture, extra={f"{architecture}.rope.freq_base": 1e5}))
    model = TransformersModel(source, device="cpu", dtype="float32")
    model.load(source, Shard())
    sizes = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "max_position_embeddings": 128}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    config = transformers.AutoConfig.for_model(architecture, **sizes, **heads, rope_parameters={"rope_type": "default", "rope_theta": 1e5})
    reference = transformers.AutoModelForCausalLM.from_config(config).eval()
    missing = reference.load_state_dict({name: torch.from_numpy(array) for name, array in written.items()}, strict=False)
    assert missing == (["lm_head.weight"], [])
    ids = [(7 * at + 3) % VOCAB for at in range(20)]
    (found,) = DenseRows(model).step(Piece(0, ids))
    with torch.inference_mode():
        wanted = reference(input_ids=torch.tensor([ids])).logits[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3 * float(wanted.std()))


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1, Kind.Q4_0, Kind.Q5_1, Kind.BF16, Kind.F16])
def test_packed_tensors_equal_the_packages_own_dequantization(tmp_path: Path, kind: Kind) -> None:
    written = llama_tensors()
    matrices = [name for name, array in written.items() if array.ndim == 2]
    source = opened(write_gguf(tmp_path / "m.gguf", written, types=dict.fromkeys(matrices, kind)))
    stored_as = {Kind.BF16: torch.bfloat16, Kind.F16: torch.float16}.get(kind, torch.float32)
    for name, tensor in source.tensors():
        array = written[name]
        if name in matrices:
            array = gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)
            assert tensor.dtype == stored_as
        np.testing.assert_array_equal(tensor.float().numpy(), array)


def test_stored_tensors_are_the_files_own_bytes_in_the_models_order(tmp_path: Path) -> None:
    written = llama_tensors()
    matrices = [name for name, array in written.items() if array.ndim == 2]
    source = opened(write_gguf(tmp_path / "m.gguf", written, types=dict.fromkeys(matrices, Kind.Q4_1)))
    assert isinstance(source, SupportsStored)
    found = {stored.name: stored for stored in source.stored_tensors()}
    assert {name: stored.type_name for name, stored in found.items()} == source.stored_types
    assert set(found) == set(source.tensor_names)
    for name, array in written.items():
        stored = found[name]
        assert (stored.type_name, stored.shape) == ("Q4_1" if name in matrices else "F32", array.shape)
        wanted = gguf.quants.quantize(array, Kind.Q4_1) if name in matrices else array.view(np.uint8).reshape(1, -1)
        np.testing.assert_array_equal(stored.rows, wanted)


def test_configuration(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.bos_token_id": 1, "llama.rope.freq_base": 500000.0}
    source = opened(write_gguf(tmp_path / "m.gguf", llama_tensors(), extra=extra))
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "rope_theta": 500000.0,
        "max_position_embeddings": 128,
        "eos_token_id": 5,
        "bos_token_id": 1,
    }
    assert {key: source.config[key] for key in expected} == expected
    assert source.generation_config == {"eos_token_id": [5, 7]}
    assert source.tokenizer_files() == {}


@pytest.mark.parametrize("key", ["bos", "eos", "padding", "eot", "eom"])
def test_special_ids_that_are_none_or_not_in_the_vocabulary(tmp_path: Path, key: str) -> None:
    """Some writers put -1 for "no such token", which is 2**32 - 1 in the format's unsigned numbers."""
    name = f"tokenizer.ggml.{key}_token_id"
    source = opened(write_gguf(tmp_path / "m.gguf", llama_tensors(), extra={name: 2**32 - 1}))
    assert "pad_token_id" not in source.config
    assert source.generation_config == {}
    assert "eos_token_id" in opened(write_gguf(tmp_path / "m.gguf", llama_tensors(), extra={"tokenizer.ggml.eos_token_id": VOCAB - 1})).config
    for wrong in (VOCAB, 999_999):
        with pytest.raises(SourceError, match=rf"{name} is {wrong}, and there are {VOCAB} tokens"):
            opened(write_gguf(tmp_path / "m.gguf", llama_tensors(), extra={name: wrong}))


def vocabulary(**more: object) -> dict[str, object]:
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.scores": [0.0, 0.0, -1.0], **more}


def test_a_vocabulary_without_special_tokens(tmp_path: Path) -> None:
    extra = vocabulary() | {f"tokenizer.ggml.{key}_token_id": 2**32 - 1 for key in ("bos", "eos", "unknown", "padding")}
    source = opened(write_gguf(tmp_path / "m.gguf", llama_tensors(), extra=extra))
    assert json.loads(source.tokenizer_files()["tokenizer_config.json"]) == {}
    assert json.loads(source.tokenizer_files()["tokenizer.json"])["model"]["unk_token"] is None


def test_a_long_token_costs_nothing(tmp_path: Path) -> None:
    longest = vocabulary() | {"tokenizer.ggml.tokens": ["a" * 1024, "a", "b"]}
    assert opened(write_gguf(tmp_path / "m.gguf", llama_tensors(), extra=longest)).tokenizer_files()
    source = opened(write_gguf(tmp_path / "m.gguf", llama_tensors(), extra=vocabulary() | {"tokenizer.ggml.tokens": ["a" * 500_000, "a", "b"]}))
    with pytest.raises(SourceError, match=r"a token has 500000 characters, at most 1024"):
        source.tokenizer_files()


def test_a_source_travels_to_another_process(tmp_path: Path) -> None:
    source = opened(write_gguf(tmp_path / "m.gguf", llama_tensors()))
    copy = pickle.loads(pickle.dumps(source))
    for (name, one), (other_name, other) in zip(source.tensors(), copy.tensors(), strict=True):
        assert name == other_name
        assert torch.equal(one, other)


@pytest.mark.parametrize(("kind", "wanted"), [("linear", {"rope_type": "linear", "factor": 4.0}), ("yarn", None), ("none", {})])
def test_rotary_scaling(tmp_path: Path, kind: str, wanted: dict[str, object] | None) -> None:
    extra = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 32}
    config = opened(write_gguf(tmp_path / "m.gguf", llama_tensors(), extra=extra)).config
    assert config.get("rope_scaling", {}) == (wanted if wanted is not None else {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})


def test_stored_rotary_factors_become_llama3_scaling(tmp_path: Path) -> None:
    """The frequencies that transformers makes from our configuration equal base frequency divided by stored divisor."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    size = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "head_dim": HIDDEN // HEADS, "max_position_embeddings": 131072}
    true, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**size, rope_parameters=rope | {"rope_theta": 500000.0}), torch.device("cpu"))
    plain = 500000.0 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    divisors = (plain / true).numpy().astype(np.float32)
    assert divisors.max() > 30  # the case is not empty
    path = write_gguf(tmp_path / "m.gguf", llama_tensors(), extra={"llama.rope.freq_base": 500000.0}, raw={"rope_freqs.weight": divisors})
    source = opened(path)
    assert source.config["rope_scaling"] == rope
    assert not any("rope" in name for name in source.tensor_names)

    endless, absurd, nothing = (np.full_like(divisors, value) for value in (np.inf, 3e38, np.nan))
    for wrong in (endless, -endless, absurd, divisors * 0, divisors * -1, divisors * 1.5, nothing, divisors[::-1].copy()):
        path = write_gguf(tmp_path / "w.gguf", llama_tensors(), extra={"llama.rope.freq_base": 500000.0}, raw={"rope_freqs.weight": wrong})
        with pytest.raises(SourceError, match=r"rotary factors"):
            opened(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"extra": {"llama.expert_count": 8}}, "mixture of experts"),
        ({"extra": {"split.count": 3}}, "one part of 3"),
        ({"extra": {"llama.rope.dimension_count": 8}}, "different widths"),
        ({"extra": {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}}, "longrope"),
        ({"architecture": "mamba"}, "'mamba' cannot be read.*llama, qwen2, qwen3"),
        ({"raw": {"blk.0.ssm_in.weight": np.zeros((2, 32), np.float32)}}, "blk.0.ssm_in.weight"),
        ({"raw": {"blk.0.attn_rot_embd.weight": np.zeros((2, 32), np.int8)}}, "attn_rot_embd"),
    ],
)
def test_what_cannot_be_read_rightly_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        opened(write_gguf(tmp_path / "m.gguf", llama_tensors(), **change))  # type: ignore[arg-type]


def test_a_type_without_dequantization_is_refused_before_loading(tmp_path: Path) -> None:
    tensors = llama_tensors()
    embedding = tensors.pop("model.embed_tokens.weight")
    with pytest.raises(SourceError, match=r"type I32 cannot be dequantized"):
        opened(write_gguf(tmp_path / "m.gguf", tensors, raw={"token_embd.weight": embedding.astype(np.int32)}))


def test_demo_model(demo_source: WeightSource) -> None:
    """The file mixes Q4_1, Q8_0 and F32; every tensor equals the gguf package's own reading of the same bytes."""
    path = demo_source._path  # type: ignore[attr-defined]
    table = {tensor.name: tensor for tensor in read_header(Stored((path,))).tensors}
    assert {tensor.type_name for tensor in table.values()} == {"Q4_1", "Q8_0", "F32"}
    stored = np.memmap(path, dtype=np.uint8, mode="r")
    started = time.perf_counter()
    read = dict(demo_source.tensors())
    assert time.perf_counter() - started < 20  # about one second where nobody else computes
    assert sum(tensor.numel() for tensor in read.values()) == 134_515_008
    for theirs, ours in (("token_embd.weight", "model.embed_tokens.weight"), ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight")):
        tensor = table[theirs]
        rows = stored[tensor.offset : tensor.offset + tensor.num_bytes].reshape(tensor.shape[0], -1)
        np.testing.assert_array_equal(read[ours].numpy(), gguf.quants.dequantize(rows, Kind(tensor.type_id)))


def test_the_table_of_types_is_that_of_the_gguf_package() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    from corekit.weights.gguf_types import KNOWN, can_dequantize, type_of

    for kind, sizes in GGML_QUANT_SIZES.items():
        assert type_of(int(kind)) == (kind.name, *sizes)
    for type_id, (_, _, num_bytes) in KNOWN.items():
        assert can_dequantize(type_id)
        assert gguf.quants.dequantize(np.zeros((1, num_bytes), dtype=np.uint8), Kind(type_id)).shape == (1, type_of(type_id).block)  # type: ignore[union-attr]
    assert type_of(4_000) is None
    assert not can_dequantize(int(Kind.I32))
