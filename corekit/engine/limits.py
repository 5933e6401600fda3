"""The scheduler's own numbers, all resolved. Knows nothing of where they came from."""

from __future__ import annotations

from dataclasses import dataclass

from corekit.api import PreemptMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What every plan keeps."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in one step; 0: no such limit."""
    watermark_blocks: int = 0
    """Blocks that an admission leaves free for those that run."""
    max_draft_tokens: int = 0
    """Guessed tokens that a decode may carry."""
    vocab_size: int = 0
    """Ids that the mask of a constrained row covers."""
    preemption: PreemptMode | None = None
    """How victims give way when the policy does not say it; None: whichever is quicker."""
    bytes_per_block: int = 0

    def refusal(self, num_prompt_tokens: int, num_samples: int) -> str | None:
        """Why such a request can never run; None if it can."""
        needed = -(-(num_prompt_tokens + 1) // self.block_size)
        if num_prompt_tokens >= self.max_model_len:
            return f"a prompt of {num_prompt_tokens} tokens and one generated token are beyond max_model_len = {self.max_model_len}"
        if needed > self.num_blocks:
            pool = self.num_blocks * self.block_size
            return (
                f"a prompt of {num_prompt_tokens} tokens and one generated token need {needed} KV blocks of {self.block_size}, "
                f"the pool has {self.num_blocks} ({pool} tokens)"
            )
        if num_samples > self.max_num_seqs:
            return f"n = {num_samples} samples need as many seats, the engine has max_num_seqs = {self.max_num_seqs}"
        return None
