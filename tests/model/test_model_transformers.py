"""The transformers provider on tiny random models: token for token what the library's own `generate` gives, family by family.

Each with a batch of unequal lengths, prompts in chunks, windows shorter than the prompts, two sizes of blocks, and both executors.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corekit.api import Admission, BatchLayout, GroupLayout, KvPlan, ModelInputs, RowInput, SamplingParams, StepInput, WeightSource
from corekit.builtin.delayed import Delayed
from corekit.builtin.in_process import InProcess
from corekit.builtin.torch_attention import TorchAttention
from corekit.builtin.torch_sampler import TorchSampler
from corekit.builtin.transformers_model import Shard, TransformersModel
from corekit.weights import open_source
from corekit.worker.worker import RankWorker

VOCAB = 97
PROMPT_LENGTHS = (11, 1, 17, 6)
NUM_TOKENS = 10
BLOCK_SIZE = 4

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "router_jitter_noise": 0.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {"head_dim": 12},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 20},
    "gemma3_text": {"head_dim": 8, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "gpt_oss": {"head_dim": 8, "sliding_window": 5, **EXPERTS},
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 7.0, "residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    "cohere2": {"sliding_window": 5, "logit_scale": 0.3},
    "phi": {},
    "phi3": {"sliding_window": 5},
    "olmo3": {"sliding_window": 5},
    "exaone4": {"sliding_window": 5},
    "glm4": {"head_dim": 8},
    "granitemoe": {**EXPERTS},
    "olmo2": {},
    "starcoder2": {"sliding_window": 5},
    "smollm3": {
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 128, "n_inner": 48},
    "gpt_neox": {"rotary_pct": 0.5},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "mixtral": {"sliding_window": 5, **EXPERTS},
    "qwen3_moe": {"head_dim": 8, "decoder_sparse_step": 1, **EXPERTS},
    "qwen2_moe": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "shared_expert_intermediate_size": 24,
        "decoder_sparse_step": 1,
        **EXPERTS,
    },
    "deepseek_v3": {
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        **EXPERTS,
    },
}


def save_tiny(folder: Path, model_type: str, **changes: Any) -> Any:
    """A random model of a family, in a folder; returns it."""
    torch.manual_seed(0)
    settings = {**COMMON, **changes}
    if "n_embd" in changes:
        settings = {
            name: value for name, value in settings.items() if name not in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        }
    config = transformers.AutoConfig.for_model(model_type, **settings)
    config.architectures = None
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model


def source_of(folder: Path) -> WeightSource:
    return open_source(str(folder), cache_dir=folder / "cache", progress=False)


def prompts() -> list[tuple[int, ...]]:
    draw = random.Random(3)
    return [tuple(draw.randrange(3, VOCAB) for _ in range(length)) for length in PROMPT_LENGTHS]


@torch.inference_mode()
def generated(model: Any, prompt: Sequence[int]) -> list[int]:
    ids = torch.tensor([prompt])
    length = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None, pad_token_id=0, **length)
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def stepped(model: TransformersModel, *, chunk: int, block_size: int = BLOCK_SIZE, delayed: bool = False, kv_dtype: str = "float32") -> list[list[int]]:
    """Greedy answers by an executor: prompts arrive one step after another and go in by chunks, beside the decodes of others."""
    layers = model.spec.layers
    attention = TorchAttention(layers, device="cpu", poison=True, block_size=block_size)
    worker = RankWorker(model=model, attention=attention, sampler=TorchSampler(), device="cpu", threads=0)
    executor = Delayed(worker, 2) if delayed else InProcess(worker)
    num_blocks = sum(-(-(length + NUM_TOKENS) // block_size) for length in PROMPT_LENGTHS)
    executor.allocate_kv(KvPlan(num_blocks=num_blocks, num_host_blocks=0, block_size=block_size, kv_dtype=kv_dtype, layers=layers))
    free = list(range(1, num_blocks + 1))
    random.Random(5).shuffle(free)
    answers: list[list[int]] = [[] for _ in PROMPT_LENGTHS]
    computed, tables, known = [0] * 4, [0] * 4, list(PROMPT_LENGTHS)
    flights: deque[list[RowInput]] = deque()
    for number in range(100):
        rows = []
        for i, prompt in enumerate(prompts()):
            count = min(chunk, known[i] - computed[i])
            if i > number or known[i] - len(prompt) == NUM_TOKENS:
                continue
            needed = -(-(computed[i] + count) // block_size) - tables[i]
            blocks, free = tuple(free[:needed]), free[needed:]
            admission = Admission(prompt, len(prompt), SamplingParams(temperature=0.0), 0, 0, ()) if computed[i] == 0 else None
            draws = int(computed[i] + count == known[i])
            rows.append(RowInput(i, computed[i], count, draws, 0, tables[i], blocks, admission))
            computed[i], tables[i], known[i] = computed[i] + count, tables[i] + needed, known[i] + draws
        if rows:
            executor.submit(StepInput(number=number, rows=tuple(rows)))
            executor.sample(None)
            flights.append(rows)
        if not flights:
            return answers
        if not rows or len(flights) == executor.max_in_flight:
            result = executor.collect()
            assert not result.faults
            for row, samples in zip(flights.popleft(), result.tokens, strict=True):
                answers[row.id] += samples[0] if samples else ()
    raise AssertionError("the answers did not end")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_answers_like_its_own_generate(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, family, **FAMILIES[family])
    wanted = [generated(reference, prompt) for prompt in prompts()]
    assert len({token for answer in wanted for token in answer}) > NUM_TOKENS, "answers that repeat one token would prove little"
    source = source_of(tmp_path)
    model = TransformersModel(source, device="cpu", dtype="float32")
    model.load(source, Shard())
    assert stepped(model, chunk=3) == wanted
    assert stepped(model, chunk=8, block_size=7, delayed=True) == wanted


def test_float64_is_carried_through(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "llama").double()
    source = source_of(tmp_path)
    model = TransformersModel(source, device="cpu", dtype="float64")
    model.load(source, Shard())
    assert stepped(model, chunk=3, kv_dtype="float64") == [generated(reference, prompt) for prompt in prompts()]


def test_chunks_and_blocks_do_not_change_logits_beyond_rounding(tmp_path: Path) -> None:
    """bfloat16: tokens may differ where two are close, logits may not differ by more than the dtype's own noise."""
    reference = save_tiny(tmp_path, "llama", initializer_range=0.1).bfloat16()
    source = source_of(tmp_path)
    model = TransformersModel(source, device="cpu", dtype="bfloat16")
    model.load(source, Shard())
    prompt, layers = torch.tensor(prompts()[2]), model.spec.layers
    attention = TorchAttention(layers, device="cpu", poison=True, block_size=BLOCK_SIZE)
    attention.allocate_kv(KvPlan(num_blocks=8, num_host_blocks=0, block_size=BLOCK_SIZE, kv_dtype="bfloat16", layers=layers))
    table, rows = torch.tensor([[5, 2, 7, 1, 8]]), []
    for start in range(0, len(prompt), 3):
        positions = torch.arange(start, min(start + 3, len(prompt)))
        slots = table[0, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        starts, ends = torch.tensor([0, len(positions)]), torch.tensor([int(positions[-1]) + 1])
        layout = BatchLayout(
            num_rows=1,
            num_tokens=len(positions),
            num_decodes=int(len(positions) == 1),
            query_start_loc=starts,
            seq_lens=ends,
            groups=(GroupLayout(table, slots),),
            host_query_start_loc=starts.numpy(),
            host_seq_lens=ends.numpy(),
        )
        attend = partial(attention.run, plan=attention.plan(layout))
        rows.append(model.logits(model.forward(ModelInputs(token_ids=prompt[positions], positions=positions), attend)))
    with torch.inference_mode():
        wanted = reference(input_ids=prompt[None]).logits[0]
    assert torch.cat(rows).dtype == torch.bfloat16
    torch.testing.assert_close(torch.cat(rows), wanted, rtol=0, atol=0.02 * float(wanted.float().std()) + 2**-6)
