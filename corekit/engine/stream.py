"""One live request between the engine's thread and its caller: what was heard and not yet taken. Knows no engine and no queue."""

from __future__ import annotations

import asyncio

from corekit.api import RequestFailed, RequestOutput, SamplingParams, Tokenizer, TokenLogprob
from corekit.engine.door import Encoded
from corekit.engine.events import SampleDelta
from corekit.engine.output import SampleOutput, StopStrings

PROMPT_TAIL = 8
"""Last ids of the prompt that a decoder sees: enough for the longest character and a leading space."""


class Stream:
    """Touched on its own event loop only, except `loop`, `engine_id` and `request_id`, which never change.

    Invariant: once `ended`, an output with `finished` or an error waits for the caller, and nothing is heard any more.
    """

    def __init__(self, *, request_id: str, engine_id: str, prompt: Encoded, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.loop = asyncio.get_running_loop()
        self.request_id = request_id
        self.engine_id = engine_id
        self.ended = False
        self.num_open = params.n
        """Samples whose last delta the engine has not sent."""
        self._prompt = prompt
        self._num_cached_tokens = 0
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        self._error: Exception | None = None
        self._news = asyncio.Event()
        stops = StopStrings(params.stop)
        tail = prompt.token_ids[-PROMPT_TAIL:]
        self._samples = [
            SampleOutput(index, tokenizer.start_decoding(tail, skip_special_tokens=params.skip_special_tokens), params, stops) for index in range(params.n)
        ]

    def hear(self, delta: SampleDelta) -> bool:
        """Take over what the engine said. True: a stop string ended the sample, and the engine goes on with it in vain."""
        self.num_open -= delta.finish_reason is not None
        if self.ended:
            return False
        self._num_cached_tokens = max(self._num_cached_tokens, delta.num_cached_tokens)
        self._prompt_logprobs = delta.prompt_logprobs or self._prompt_logprobs
        sample = self._samples[delta.sample]
        running = sample.finish_reason is None
        sample.push(delta)
        if delta.finish_reason == "error":
            self.fail(RequestFailed(delta.error or "the engine gave no reason"))
        if delta.finish_reason == "abort":  # whole requests are aborted; before the fork the first sample speaks for all
            for other in self._samples:
                other.end("abort")
        self._news.set()
        if sample.finish_reason is None:
            return False
        self.ended = self.ended or all(s.finish_reason is not None for s in self._samples)
        return running and delta.finish_reason is None

    def fail(self, error: Exception) -> None:
        """End it with an error, after the news that the caller has not taken."""
        if not self.ended:
            self.ended = True
            self._error = error
            self._news.set()

    async def next(self) -> RequestOutput:
        """What is new, as soon as anything is. Raises the request's error once nothing is left to take."""
        while True:
            outputs = tuple(output for sample in self._samples if (output := sample.take()) is not None)
            if outputs and (self._error is None or any(output.token_ids or output.text for output in outputs)):
                prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
                return RequestOutput(
                    request_id=self.request_id,
                    prompt=self._prompt.text,
                    num_prompt_tokens=len(self._prompt.token_ids),
                    num_cached_tokens=self._num_cached_tokens,
                    outputs=outputs,
                    finished=self.ended and self._error is None,
                    prompt_logprobs=prompt_logprobs,
                    prompt_token_ids=self._prompt.token_ids,
                )
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
