"""`LLM`: an engine in a line, for Python users who wait for whole answers.

Knows how to assemble and the engine's client; nothing of what happens below.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import aclosing
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from corekit.api import CompletionOutput, CorekitError, EngineDead, FinishReason, InvalidRequest, Prompt, RequestOutput, SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from corekit.compose.assembly import Assembly
    from corekit.compose.config import Config

T = TypeVar("T")
Message = Mapping[str, Any]
AnyPrompt = str | Prompt | Sequence[int]

BACKLOG = 32
"""Requests kept waiting beyond the seats, so that the engine never waits for the next prompt."""
LONG = 1.0
"""Seconds after which a progress bar is worth a line."""
ENDING = 10.0
"""Seconds that an interrupted call waits for its requests to end; a step that takes longer hangs."""
CLOSED = "this LLM was closed, or lives in the process that forked this one; make a new one"


class LLM:
    """An engine of its own, without frontends, that answers lists of prompts in their order.

        with LLM("path/to/model", max_model_len=2048) as llm:
            print(llm.generate("The capital of France is")[0].outputs[0].text)

    source: a folder, a .gguf file, a hub id or a package; nothing for the demo model. options: keys of the configuration
    by their own name (`dtype`, `max_num_seqs`, `block_size` ...) or by table (`scheduler={"watermark": 0}`), and a slot's
    provider by the slot's name (`executor="delayed"`). config: a TOML file, tables, or a checked `Config` beneath them.

    Any number of threads may use it. Invariant: after a call has returned or raised, none of its requests is alive.
    """

    def __init__(self, source: str | None = None, *, config: Config | Mapping[str, Any] | str | PathLike[str] | None = None, **options: Any) -> None:
        from corekit.compose.assemble import assemble
        from corekit.compose.given import configured

        self._assembly = assemble(configured(source, config, options), frontends=())
        self._assembly.start()
        self._loop = _LoopThread()
        # Runs once: on close, when nobody holds this any more, or at the exit of the interpreter while threads still work.
        self._end = weakref.finalize(self, _end, self._assembly, self._loop)

    @property
    def assembly(self) -> Assembly:
        """What it consists of: parts, configuration, pool."""
        return self._assembly

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """The whole answers, in the order of the prompts. A prompt is text, a list of ids or a `Prompt`; give one or a list of them.

        params: one for all, or one for each. progress: a bar on standard error when it takes longer than a second.
        Raises the first error of any prompt, naming its index, when the other requests of this call have ended.
        """
        one = isinstance(prompts, str | Prompt) or _are_ids(prompts)
        several = [prompts] if one else _listed(prompts, "prompts", "text, a list of token ids, a Prompt, or a list of those")
        asked = [_prompt(index, prompt) for index, prompt in enumerate(several)]
        return self._answer(asked, _each(SamplingParams() if params is None else params, len(asked)), progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """The same for one conversation or a list of them. Without params an answer may fill the context."""
        given: list[Any] = _listed(messages, "messages", "a list of messages, or a list of such lists")
        asked = [_conversation(one) for one in ([given] if not given or isinstance(given[0], Mapping) else given)]
        return self._answer(asked, _each(SamplingParams(max_tokens=None) if params is None else params, len(asked)), progress)

    def close(self) -> None:
        """End the engine; calls that still wait end with an error or with what there is. A second call does nothing."""
        self._end()

    def __repr__(self) -> str:
        model = self._assembly.client.model
        return f"<LLM {model.name!r}, context {model.max_model_len:,} tokens{'' if self._end.alive else ', closed'}>"

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _answer(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], progress: bool) -> list[RequestOutput]:
        from tqdm import tqdm

        if not self._end.alive:
            raise EngineDead(CLOSED)
        shown = progress and sys.stderr is not None
        often = 0.1 if shown and sys.stderr.isatty() else LONG  # in a file every look at the bar stays
        bar = tqdm(total=len(prompts), desc="requests", unit="req", delay=LONG, mininterval=often, maxinterval=often, disable=not shown, file=sys.stderr)
        with bar:
            return self._loop.call(self._answer_all(prompts, params, bar.update))

    async def _answer_all(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], tell: Callable[[], object]) -> list[RequestOutput]:
        """A fixed number of workers share the prompts, so that memory and queue do not grow with the list."""
        results: dict[int, RequestOutput] = {}
        todo = iter(range(len(prompts)))

        async def work() -> None:
            for index in todo:
                results[index] = await self._answer_one(index, prompts[index], params[index])
                tell()

        num_workers = min(self._assembly.config.scheduler.max_num_seqs + BACKLOG, len(prompts))
        workers = [asyncio.create_task(work()) for _ in range(num_workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [results[index] for index in range(len(prompts))]

    async def _answer_one(self, index: int, prompt: Prompt, params: SamplingParams) -> RequestOutput:
        whole = [_Whole(sample, params) for sample in range(params.n)]
        try:
            async with aclosing(self._assembly.client.generate(prompt, params, patient=True)) as news:
                async for output in news:
                    for piece in output.outputs:
                        whole[piece.index].add(piece)
        except CorekitError as error:
            raise _at(index, error) from error
        return RequestOutput(
            request_id=output.request_id,
            prompt=output.prompt,
            num_prompt_tokens=output.num_prompt_tokens,
            num_cached_tokens=output.num_cached_tokens,
            outputs=tuple(sample.output() for sample in whole),
            finished=True,
        )


class _Whole:
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


class _LoopThread:
    """An event loop in a thread of its own. Holds no reference to who uses it."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="corekit-llm", daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait. Interrupted: cancel it and wait until it has cleaned up, so that the next call finds nothing of it."""
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await work
            finally:
                ended.set()

        try:
            if not self._thread.is_alive():  # a forked child does not have it
                raise RuntimeError("its thread is not in this process")
            future = asyncio.run_coroutine_threadsafe(watched(), self._loop)
        except RuntimeError as error:
            work.close()
            raise EngineDead(CLOSED) from error
        try:
            return future.result()
        except CancelledError:  # only the end of the loop cancels it
            raise EngineDead(CLOSED) from None
        except BaseException:
            if future.cancel():
                ended.wait(ENDING)
            raise

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _end(assembly: Assembly, loop: _LoopThread) -> None:
    try:
        assembly.close()
    finally:
        loop.end()


def _are_ids(prompts: object) -> bool:
    """One prompt of ids, not a list of prompts. An empty list is one of no prompts."""
    return isinstance(prompts, Sequence) and bool(prompts) and all(isinstance(item, int) for item in prompts)


def _listed(given: object, name: str, wanted: str) -> list[Any]:
    """given as a list. A text, or a table, could be walked through as well, and is never meant so."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest(f"{name} must be {wanted}, got {type(given).__name__}", field=name)
    return list(given)


def _prompt(index: int, prompt: object) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        return Prompt(token_ids=tuple(prompt))
    raise InvalidRequest(f"prompts[{index}] must be text, a list of token ids or a Prompt, got {type(prompt).__name__}", field="prompts")


def _conversation(messages: object) -> Prompt:
    wanted = 'must be a mapping with a role that is text, as in {"role": "user", "content": "Hello"}'
    listed = _listed(messages, "messages", "a list of messages, or a list of such lists")
    for index, message in enumerate(listed):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{index}] {wanted}, got {message!r:.200}", field="messages")
    return Prompt(messages=tuple(listed))


def _each(params: SamplingParams | Sequence[SamplingParams], count: int) -> Sequence[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    each = _listed(params, "params", "SamplingParams, as in SamplingParams(max_tokens=3), or a list of those")
    if len(each) != count:
        raise InvalidRequest(f"params must be one for all or one for each of the {count} prompts, got {len(each)}", field="params")
    if wrong := [index for index, one in enumerate(each) if not isinstance(one, SamplingParams)]:
        raise InvalidRequest(f"params[{wrong[0]}] must be SamplingParams, got {type(each[wrong[0]]).__name__}", field="params")
    return each


def _at(index: int, error: CorekitError) -> CorekitError:
    message = f"prompts[{index}]: {error}"
    return InvalidRequest(message, field=error.field, code=error.code) if isinstance(error, InvalidRequest) else type(error)(message)
