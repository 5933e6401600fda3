"""`LLM`: an engine in a line, for Python users who wait for whole answers.

Knows how to assemble and the engine's client; nothing of what happens below.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

from corekit.api import CorekitError, EngineDead, InvalidRequest, Prompt, RequestOutput, SamplingParams

from .asked import AnyPrompt, Message, are_ids, as_conversation, as_prompt, each, listed
from .loop_thread import CLOSED, LoopThread
from .whole import whole

if TYPE_CHECKING:
    from corekit.compose.assembly import Assembly
    from corekit.compose.config import Config

BACKLOG = 32
"""Requests kept waiting beyond the seats, so that the engine never waits for the next prompt."""
LONG = 1.0
"""Seconds after which a progress bar is worth a line."""


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
        self._loop = LoopThread()
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
        one = isinstance(prompts, str | Prompt) or are_ids(prompts)
        several = [prompts] if one else listed(prompts, "prompts", "text, a list of token ids, a Prompt, or a list of those")
        for index, prompt in enumerate(several):  # what is no prompt is found before the first is answered
            as_prompt(prompt, f"prompts[{index}]")
        return self._answer(several, as_prompt, each(SamplingParams() if params is None else params, len(several)), progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """The same for one conversation or a list of them. Without params an answer may fill the context."""
        given: list[Any] = listed(messages, "messages", "a list of messages, or a list of such lists")
        one = not given or isinstance(given[0], Mapping)
        several = [given] if one else given
        for index, conversation in enumerate(several):
            as_conversation(conversation, "messages" if one else f"messages[{index}]")
        return self._answer(several, as_conversation, each(SamplingParams(max_tokens=None) if params is None else params, len(several)), progress)

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

    def _answer(self, given: Sequence[Any], read: Callable[[Any], Prompt], params: Sequence[SamplingParams], progress: bool) -> list[RequestOutput]:
        from tqdm import tqdm

        if not self._end.alive:
            raise EngineDead(CLOSED)
        shown = progress and sys.stderr is not None
        often = 0.1 if shown and sys.stderr.isatty() else LONG  # in a file every look at the bar stays
        bar = tqdm(total=len(given), desc="requests", unit="req", delay=LONG, mininterval=often, maxinterval=often, disable=not shown, file=sys.stderr)
        with bar:
            return self._loop.call(self._answer_all(given, read, params, bar.update))

    async def _answer_all(
        self, given: Sequence[Any], read: Callable[[Any], Prompt], params: Sequence[SamplingParams], tell: Callable[[], object]
    ) -> list[RequestOutput]:
        """A fixed number of workers share the prompts and read each when it is its turn: memory and queue do not grow with the list."""
        results: dict[int, RequestOutput] = {}
        todo = iter(range(len(given)))

        async def work() -> None:
            for index in todo:
                try:
                    news = self._assembly.client.generate(read(given[index]), params[index], patient=True)
                    results[index] = await whole(news, params[index])
                except CorekitError as error:
                    raise _at(index, error) from error
                tell()

        num_workers = min(self._assembly.config.scheduler.max_num_seqs + BACKLOG, len(given))
        workers = [asyncio.create_task(work()) for _ in range(num_workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [results[index] for index in range(len(given))]


def _end(assembly: Assembly, loop: LoopThread) -> None:
    try:
        assembly.close()
    finally:
        loop.end()


def _at(index: int, error: CorekitError) -> CorekitError:
    message = f"prompts[{index}]: {error}"
    return InvalidRequest(message, field=error.field, code=error.code) if isinstance(error, InvalidRequest) else type(error)(message)
