"""A job to its answer: reads the engine's iterators, writes a whole answer or a stream. Knows nothing of HTTP beyond `Reply`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from corekit.api import CompletionOutput, EngineClient, InvalidRequest, RequestOutput

from .errors import ApiError
from .forms import Form
from .gathered import Gathered, Paced, Samples, likeliest
from .reply import Reply
from .requests import Job
from .stopwatch import Stopwatch
from .wire import CachedTokens, Usage

_CUT = frozenset({"abort", "error"})
"""Reasons that are no answer's end."""

_MAX_ENTRIES_ON_LOOP = 4096
"""Tokens and logprobs of a whole answer that is put together on the event loop, in a few milliseconds."""


class Tally:
    """Usage of one answer: a prompt counts once, whatever the number of its samples."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._num_output_tokens = 0

    def add(self, prompt: int, output: RequestOutput) -> bool:
        """Whether it is the first of this prompt."""
        new = prompt not in self._prompts
        self._prompts[prompt] = (output.num_prompt_tokens, output.num_cached_tokens)
        self._num_output_tokens += sum(len(sample.token_ids) for sample in output.outputs)
        return new

    def usage(self) -> Usage:
        num_prompt_tokens = sum(tokens for tokens, _ in self._prompts.values())
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=self._num_output_tokens,
            total_tokens=num_prompt_tokens + self._num_output_tokens,
            prompt_tokens_details=CachedTokens(cached_tokens=sum(cached for _, cached in self._prompts.values())),
        )


class Answering:
    """One job on its way. When `run` ends, for whatever reason, none of its requests is alive in the engine."""

    def __init__(self, job: Job, form: Form, client: EngineClient, stopwatch: Stopwatch) -> None:
        self._job = job
        self._form = form
        self._client = client
        self._stopwatch = stopwatch
        self._tally = Tally()
        self._is_large = False
        """Whether the next news hold a long prompt."""
        stopwatch.usage = self._tally.usage

    async def run(self, reply: Reply) -> None:
        async with aclosing(self._news()) as news:
            if self._job.stream:
                await self._stream(news, reply)
            else:
                await self._whole(news, reply)
        self._stopwatch.done()

    async def _news(self) -> AsyncGenerator[Samples, None]:
        """What is new, by number of the choice."""
        job, n = self._job, self._job.params.n
        streams = [
            self._client.generate(prompt, job.params, request_id=f"{self._form.answer_id}-{number}", priority=job.priority, tenant=job.tenant)
            for number, prompt in enumerate(job.prompts)
        ]
        async with aclosing(_merged(streams)) as merged:
            async for number, heard in merged:
                output = _without_tokens(heard) if job.shown.nothing else heard
                if self._tally.add(number, output):
                    await self._begin(number, output)
                samples = [(number * n + sample.index, sample) for sample in output.outputs]
                cut = {sample.finish_reason for _, sample in samples} & _CUT
                if cut:  # clients know no such reason: what was said goes out, then comes an error, from the engine or from here
                    samples = [(index, replace(sample, finish_reason=None) if sample.finish_reason in _CUT else sample) for index, sample in samples]
                for index, sample in samples:
                    self._stopwatch.news(index, sample)
                yield samples
                if cut and output.finished:
                    raise ApiError(500, f"The request was ended early ({', '.join(map(str, cut))})", code="request_failed")

    async def _begin(self, number: int, output: RequestOutput) -> None:
        """Tells the form of a prompt; beside the loop where much of it is shown."""
        if self._num_shown(output.num_prompt_tokens) > _MAX_ENTRIES_ON_LOOP:
            self._is_large = True
            await asyncio.to_thread(self._form.begin, number, output)
        else:
            self._form.begin(number, output)

    def _num_shown(self, num_prompt_tokens: int) -> int:
        """Entries of tokens and logprobs that all choices of one prompt show of it."""
        shown, params = self._job.shown, self._job.params
        if not (shown.echo or shown.token_ids or shown.prompt_logprobs is not None):
            return 0
        return num_prompt_tokens * params.n * (1 + (params.prompt_logprobs or 0))

    async def _whole(self, news: AsyncGenerator[Samples, None], reply: Reply) -> None:
        gathered = [Gathered() for _ in range(len(self._job.prompts) * self._job.params.n)]
        async for samples in news:
            for index, sample in samples:
                gathered[index].add(sample)
        usage = self._tally.usage()
        large = usage.completion_tokens * (1 + (self._job.params.logprobs or 0)) + self._num_shown(usage.prompt_tokens) > _MAX_ENTRIES_ON_LOOP
        part = self._form.part
        whole = [one.whole(index) for index, one in enumerate(gathered)]
        if self._job.shown.best is not None:
            whole = likeliest(whole, self._job.params.n, self._job.shown.best)
        parts = [await asyncio.to_thread(part, index, one) if large else part(index, one) for index, one in enumerate(whole)]
        await reply.whole(self._form.whole(parts, usage))

    async def _stream(self, news: AsyncGenerator[Samples, None], reply: Reply) -> None:
        paced = Paced(self._job.shown.interval)
        try:
            async for samples in news:  # nothing is sent before the first news: a request that fails at the door gets a plain error
                if due := paced.due(samples):
                    await reply.events(await self._events(due))
        except Exception:  # what was said goes out, then comes the error
            if rest := paced.rest():
                await reply.events(self._form.news(rest, self._tally.usage))
            raise
        await reply.end(self._form.end(self._tally.usage()))

    async def _events(self, samples: Samples) -> Sequence[bytes]:
        """The first of a prompt hold what is shown of it, which may be long."""
        if self._is_large:
            self._is_large = False
            return await asyncio.to_thread(self._form.news, samples, self._tally.usage)
        return self._form.news(samples, self._tally.usage)


def _without_tokens(output: RequestOutput) -> RequestOutput:
    """As if nothing had been drawn. The engine ends such a request by its length, unless it cut it."""
    outputs = tuple(_without_its_tokens(sample) for sample in output.outputs)
    return replace(output, outputs=outputs)


def _without_its_tokens(sample: CompletionOutput) -> CompletionOutput:
    reason = "length" if sample.finish_reason == "stop" else sample.finish_reason
    return replace(sample, text="", token_ids=(), logprobs=None if sample.logprobs is None else (), finish_reason=reason, stop_reason=None)


async def _merged(streams: Sequence[AsyncIterator[RequestOutput]]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Outputs of all streams as they come, with the number of the stream. The first error ends all; closing it closes all."""
    if len(streams) == 1:
        try:
            async for output in streams[0]:
                yield 0, output
        finally:
            await _close(streams[0])
        return
    # no more than that: what the client has not read yet waits in the engine's streams, which merge it
    queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue(maxsize=len(streams))
    readers = [asyncio.create_task(_read(number, stream, queue)) for number, stream in enumerate(streams)]
    try:
        num_open = len(streams)
        while num_open:
            number, item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield number, item
    finally:
        item = None  # an error raised here must not be named here: that would keep the whole request until garbage is collected
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(number: int, stream: AsyncIterator[RequestOutput], queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]]) -> None:
    try:
        async for output in stream:
            await queue.put((number, output))
        await queue.put((number, None))
    except InvalidRequest as error:
        field = f"prompt[{number}]" if error.field == "prompt" else error.field
        await queue.put((number, InvalidRequest(str(error), field=field, code=error.code)))
    except Exception as error:
        await queue.put((number, error))
    finally:
        del queue  # an error in it leads to this frame, and must not lead back
        await _close(stream)


async def _close(stream: AsyncIterator[RequestOutput]) -> None:
    if isinstance(stream, AsyncGenerator) or hasattr(stream, "aclose"):
        await stream.aclose()
