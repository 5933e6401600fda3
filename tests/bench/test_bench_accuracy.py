"""`corekit bench accuracy` on tiny random models, beside the same figures from a dense float64 forward of the library's own model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner, Result

from corekit.cli.bench import bench

VOCAB = 260
WINDOW = 24
NUM_WINDOWS = 5
MIN_MARGIN = 1e-3
"""Between the two likeliest ids, in logits: rounding must not decide what both engines and the dense forward call likeliest."""
TEXT = "".join(f"The {word} number {at} is not the one before.\n\n" for at, word in enumerate(("first", "second", "third", "fourth")))
FLOAT32 = "{}=model.source={},model.dtype=float32,block_allocator.kv_dtype=float32"
QUICK = ["--max-foreign", "4096", "--tokens", NUM_WINDOWS * WINDOW, "--window", WINDOW]


def save_random(folder: Path, *, noise: float = 0.0, overflows: bool = False) -> Path:
    """Always the same model, with noise on its weights, or with logits that are no numbers."""
    config = transformers.AutoConfig.for_model(
        "llama",
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    config.architectures = None
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * torch.randn_like(weight)
        if overflows:
            model.model.norm.weight[0] = 1e6
            model.lm_head.weight[:2] = 0
            model.lm_head.weight[:2, 0] = torch.tensor([3e38, -3e38])
    model.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Places:
    one: Path
    other: Path
    broken: Path
    text: Path

    @property
    def common(self) -> list[object]:
        return [self.one, "--set", "model.use=transformers", "--set", "tokenizer.use=bytes", "--text", self.text, *QUICK]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("accuracy")
    (folder / "text.txt").write_text(TEXT)
    return Places(
        one=save_random(folder / "one"),
        other=save_random(folder / "other", noise=0.03),
        broken=save_random(folder / "broken", overflows=True),
        text=folder / "text.txt",
    )


def invoked(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(bench, ["accuracy", *map(str, args)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def figures(result: Result, section: str = "accuracy") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(result.stdout[result.stdout.index("{\n") :])["sections"].get(section, [])
    return rows


@torch.inference_mode()
def dense(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """[windows, WINDOW - 1]: log-probabilities of the text's own bytes, and the likeliest ids in their places."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    ids = torch.tensor(list(TEXT.encode()[: NUM_WINDOWS * WINDOW])).view(NUM_WINDOWS, WINDOW)
    logits = model(ids).logits[:, :-1]
    best = logits.topk(2, -1).values
    assert (best[..., 0] - best[..., 1]).min() > MIN_MARGIN
    return logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0], logits.argmax(-1)


def test_figures_are_those_of_a_dense_forward_in_float64(places: Places) -> None:
    (mine, likeliest), (theirs, expected) = dense(places.other), dense(places.one)
    agreement = float((likeliest == expected).double().mean())
    assert 0.2 < agreement < 0.9, "models that agree on all or on nothing prove little"
    shapes = ["prefill", 1, 3]
    result = invoked(
        *places.common, "--variant", FLOAT32.format("other", places.other), "--json", "-", *(part for shape in shapes for part in ("--rows", shape))
    )
    reference, *rows = figures(result)
    assert (reference["precision"], reference["shape"], reference["ratio"], reference["agreement,_%"]) == ("float32", "prefill", 1.0, 100.0)
    assert reference["perplexity"] == pytest.approx(math.exp(-theirs.mean()), rel=1e-5)
    assert [row["shape"] for row in rows] == ["prefill", "1 row", "3 rows"]
    ratio = math.exp((theirs - mine).mean())
    for row in rows:
        assert row["precision"] == "other"
        assert row["perplexity"] == pytest.approx(math.exp(-mine.mean()), rel=1e-5)
        assert row["ratio"] == pytest.approx(ratio, rel=1e-5)
        assert row["more,_%"] == pytest.approx(100 * (ratio - 1), rel=1e-4)
        assert row["+/-,_%"] == pytest.approx(100 * ratio * float((theirs - mine).mean(1).std()) / math.sqrt(NUM_WINDOWS), rel=1e-4)
        assert row["agreement,_%"] == pytest.approx(100 * agreement)
        assert row["mean_|d_ln_p|"] == pytest.approx(float((theirs - mine).abs().mean()), rel=1e-4)
    prefill, one, three = rows
    assert prefill["tokens/step"] > WINDOW / 2
    assert one["tokens/step"] == one["rows/step"] == 1
    assert three["tokens/step"] == three["rows/step"] > 2
    (_, verdict) = figures(result, "verdict")
    assert verdict["perplexity_within_1%_of_float32"] is False
    assert verdict["least_agreement,_%"] == pytest.approx(100 * agreement)


def test_precisions_of_one_model(places: Places) -> None:
    result = invoked(*places.common, "--rows", "prefill", "--rows", 2, "--json", "-")
    rows = figures(result)
    assert [(row["precision"], row["shape"]) for row in rows][:4] == [
        ("float32", "prefill"),
        ("float32", "2 rows"),
        ("bfloat16", "prefill"),
        ("bfloat16", "2 rows"),
    ]
    assert rows[1]["ratio"] == pytest.approx(1, abs=1e-5)
    assert rows[1]["agreement,_%"] == 100
    for row in rows[2:4]:
        assert row["ratio"] == pytest.approx(1, abs=0.05)
        assert row["mean_|d_ln_p|"] > 1e-3, "rounding to 8 bits shows"
    target = json.loads(result.stdout)["target"]
    for dtype in ("float32", "bfloat16"):
        assert f", {dtype} on cpu" in target[dtype][0]
    names = {row["precision"] for row in rows}
    for one in figures(result, "not available"):
        assert one["precision"] in ("stored", "int8")
        assert one["precision"] not in names
        assert one["reason"]
    assert "sha256" in result.stderr and "perplexity within 1% of float32" in result.stderr


def test_what_gives_no_figures_is_missing_and_breaks_a_limit(places: Places) -> None:
    broken = [*places.common, "--rows", 2, "--variant", FLOAT32.format("broken", places.broken)]
    result = invoked(*broken, "--json", "-", "--max-ratio", 1.5, code=1)
    (missing,) = figures(result, "not available")
    assert (missing["precision"], missing["shape"]) == ("broken", "2 rows")
    assert "finite" in missing["reason"]
    assert "--max-ratio 1.5: broken: not available" in result.stderr
    same = [*places.common, "--rows", 4, "--precision", "float32"]
    invoked(*same, "--max-ratio", 1.01)
    assert "float32, 4 rows: 1.0000" in invoked(*same, "--max-ratio", 0.99, code=1).stderr


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--rows", 0], 2, "--rows"),
        (["--rows", "²"], 2, "'prefill' or an integer from 1 to 1024"),
        (["--precision", "int3"], 2, "int3"),
        (["--variant", "half"], 2, "must be NAME=table.key=value"),
        (["--variant", "half=dtype=float16"], 2, "must be table.key=value"),
        (["--variant", "float32=model.dtype=float16"], 2, "name of a known precision"),
        (["--variant", "a=model.dtype=float16", "--variant", "a=model.dtype=auto"], 2, "two of that name"),
        (["--window", 64], 2, "do not fit into a context of 64"),
        (["--tokens", 10**6], 2, "Ask for fewer with --tokens"),
        (["--set", "scheduler.max_num_seqs=0"], 3, "max_num_seqs"),
    ],
)
def test_what_cannot_be_measured(places: Places, more: Sequence[object], code: int, says: str) -> None:
    result = invoked(*places.common, *more, code=code)
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_a_reference_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    model = ["none", "--set", "model.use=fingerprint", "--set", "tokenizer.use=bytes", *QUICK]
    assert "float32, the reference: " in invoked(*model, code=3).stderr
    text = tmp_path / "text"
    text.write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in invoked(*model, "--text", text, code=2).stderr
