"""From the news of a request to its whole answer. Knows neither engines nor event loops."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from corekit.api import CompletionOutput, FinishReason, RequestOutput, SamplingParams, TokenLogprob


async def whole(news: AsyncGenerator[RequestOutput, None], params: SamplingParams) -> RequestOutput:
    """Everything that news brings, as one answer. However it ends, news is closed."""
    samples = [_Sample(index, params) for index in range(params.n)]
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    async with aclosing(news):
        async for output in news:
            if output.prompt_logprobs is not None:  # in one output of the stream alone
                prompt_logprobs = output.prompt_logprobs
            for piece in output.outputs:
                samples[piece.index].add(piece)
    return replace(output, outputs=tuple(sample.output() for sample in samples), finished=True, prompt_logprobs=prompt_logprobs)


class _Sample:
    """One sample, put together from its news."""

    def __init__(self, index: int, params: SamplingParams) -> None:
        self._index = index
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None

    def add(self, piece: CompletionOutput) -> None:
        self._text.append(piece.text)
        self._token_ids += piece.token_ids
        if self._logprobs is not None:
            self._logprobs += piece.logprobs or ()
        self._finish_reason, self._stop_reason = piece.finish_reason, piece.stop_reason

    def output(self) -> CompletionOutput:
        return CompletionOutput(
            index=self._index,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
        )
