"""How many blocks the pool gets, and what that means in tokens. Counts bytes; knows no device."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ConfigError

CPU_SHARE = 0.25
"""Of the memory that is available: a pool must not push the rest of the machine out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The pool as decided, and the numbers that it follows from."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    max_model_len: int
    num_host_blocks: int = 0
    """Of the swap space, which the stack asks for."""

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def largest_context(self) -> int:
        """Tokens of prompt and answer that one request can have: the limit, or what the whole pool holds."""
        return min(self.max_model_len, self.num_tokens)

    def line(self) -> str:
        memory = _memory((self.num_blocks + 1) * self.bytes_per_block)
        text = f"KV cache: {self.num_blocks:,} blocks of {self.block_size} tokens = {self.num_tokens:,} tokens (up to {memory}); "
        if self.num_host_blocks:
            text += f"swap space: {self.num_host_blocks:,} blocks ({_memory(self.num_host_blocks * self.bytes_per_block)} of the host); "
        text += f"largest context {self.largest_context:,} tokens"
        if self.largest_context < self.max_model_len:
            text += f" (max_model_len is {self.max_model_len:,}, but the pool holds no more)"
        return text


def size_pool(
    *, device: str, free_memory: int, bytes_per_block: int, block_size: int, num_blocks: int, memory_utilization: float, max_num_seqs: int, max_model_len: int
) -> Pool:
    """num_blocks as asked for (0: decide). Raises ConfigError, with the numbers, when not even a small request would fit."""
    if bytes_per_block < 1:
        raise ConfigError(f"the attention backend says that a block takes {bytes_per_block} bytes; this is a fault of the backend")
    least = -(-2 // block_size) + 1
    wanted = max(least, max_num_seqs * -(-max_model_len // block_size))
    share = CPU_SHARE if device == "cpu" else memory_utilization
    fits = int(free_memory * share) // bytes_per_block - 1  # block 0 is padding and takes memory too
    most = free_memory // bytes_per_block - 1
    if device == "cpu" and num_blocks > max(most, 0):
        raise ConfigError(
            f"[block_allocator] num_blocks = {num_blocks}: a block takes {bytes_per_block:,} bytes and {free_memory:,} bytes are free, which is {max(most, 0)} "
            "blocks beside the one for padding. Ask for fewer, or leave num_blocks at 0 for what max_num_seqs needs."
        )
    count = num_blocks or (min(wanted, fits) if device == "cpu" else fits)
    if count < least:
        room = f"{free_memory / 2**20:,.0f} MiB are free, of which the pool may take {share:.0%}"
        raise ConfigError(
            f"[block_allocator]: the pool would have {max(count, 0)} blocks of {block_size} tokens, at least {least} are needed "
            f"(one prompt token, one answer token, one block to spare). A block takes {bytes_per_block:,} bytes; {room}. "
            "Set num_blocks higher, choose a smaller block_size, or free memory."
        )
    return Pool(num_blocks=count, block_size=block_size, bytes_per_block=bytes_per_block, max_model_len=max_model_len)


def _memory(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
