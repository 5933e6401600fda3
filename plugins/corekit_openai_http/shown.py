"""What an answer shows of what the engine says. Plain values; knows neither bodies nor shapes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Of one request. Without anything said: the new text of every sample, as it comes."""

    best: int | None = None
    """Only so many samples of a prompt, the likeliest; None: all."""
    nothing: bool = False
    """No new token: the engine draws one in any case, which is dropped."""
    logprobs: int | None = None
    """Of new tokens, with so many likeliest ones; and of the prompt's, where `echo` shows it."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens, on their own."""
    echo: bool = False
    """The prompt comes before each answer to it."""
    before: str = ""
    """This text comes before each answer."""
    token_ids: bool = False
    tokens_as_ids: bool = False
    """Tokens among logprobs are called by their ids: texts of two may be the same, and parts of characters have none."""
    usage_so_far: bool = False
    """Every chunk of a stream says what was counted up to it."""
    obfuscated: bool = False
    """Chunks of a stream are padded, so that their lengths tell less about what they say."""
    interval: int = 1
    """Tokens of a choice that wait for one another in a stream. The first does not."""
