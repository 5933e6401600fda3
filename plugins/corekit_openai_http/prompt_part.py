"""What an answer shows of a prompt: its text, its tokens with their places in it, their logprobs. Knows no engine and no shape of an answer."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from corekit.api import RequestOutput, Tokenizer, TokenLogprob

from .shown import Shown
from .token_names import TokenNames
from .wire import CompletionLogprobs, ScoredToken

_SLACK = 8
"""Characters of a text that its tokens may lack, where the tokenizer reads some as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPart:
    """Made once a prompt, however many choices show it."""

    text: str = ""
    """What comes before each answer."""
    logprobs: CompletionLogprobs | None = None
    """Of that text."""
    scored: msgspec.Raw | UnsetType = UNSET
    """vLLM's `prompt_logprobs`, as JSON."""
    token_ids: tuple[int, ...] | UnsetType = UNSET

    @classmethod
    def of(cls, output: RequestOutput, shown: Shown, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> PromptPart:
        names = TokenNames(tokenizer, by_ids=shown.tokens_as_ids)
        text = _text(output, tokenizer, skip_special_tokens=skip_special_tokens) if shown.echo else ""
        return cls(
            text=text,
            logprobs=_with_places(text, output, names, shown.logprobs) if shown.echo and shown.logprobs is not None else None,
            scored=UNSET if shown.prompt_logprobs is None else _scored_tokens(output, names, shown.prompt_logprobs),
            token_ids=output.prompt_token_ids if shown.token_ids else UNSET,
        )


def _text(output: RequestOutput, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> str:
    """As it was sent, or what its ids say."""
    if output.prompt is not None:
        return output.prompt
    decoder = tokenizer.start_decoding((), skip_special_tokens=skip_special_tokens)
    return "".join(map(decoder.push, output.prompt_token_ids)) + decoder.finish()


def _with_places(text: str, output: RequestOutput, names: TokenNames, num_top: int) -> CompletionLogprobs:
    """Each token of the prompt, where it begins in the text, and its logprob; nothing precedes the first."""
    shown = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token_id, scored, place in zip(output.prompt_token_ids, _scores(output), _places(text, output.prompt_token_ids, names), strict=True):
        shown.text_offset.append(place)
        names.add(shown, token_id, scored, num_top)
    return shown


def _scored_tokens(output: RequestOutput, names: TokenNames, num_top: int) -> msgspec.Raw:
    """By id, the token's own among the likeliest. A rank is known for the latter alone."""
    entries = [None if scored is None else _scored(scored, names, num_top) for scored in _scores(output)]
    return msgspec.Raw(msgspec.json.encode(entries))


def _scored(given: TokenLogprob, names: TokenNames, num_top: int) -> dict[int, ScoredToken]:
    top = given.top[:num_top]
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(given.top, 1)}
    logprobs = dict(top) | {given.token_id: given.logprob}
    return {
        token_id: ScoredToken(logprob=names.finite(logprob), rank=ranks.get(token_id, UNSET), decoded_token=names.text(token_id))
        for token_id, logprob in logprobs.items()
    }


def _scores(output: RequestOutput) -> Sequence[TokenLogprob | None]:
    return output.prompt_logprobs if output.prompt_logprobs is not None else (None,) * len(output.prompt_token_ids)


def _places(text: str, token_ids: Sequence[int], names: TokenNames) -> list[int]:
    """Control tokens that the tokenizer adds have no text; a first word may have lost its space."""
    decoder, at, places = codecs.getincrementaldecoder("utf-8")("replace"), 0, []
    for token_id in token_ids:
        spelled = decoder.decode(names.raw(token_id))
        for said in dict.fromkeys((spelled, spelled.lstrip(" "))) if spelled else ():
            start = text.find(said, at, at + len(said) + _SLACK) if said else -1
            if start >= 0:
                places.append(start)
                at = start + len(said)
                break
        else:
            places.append(at)
    return places
