"""`AsyncLLM`: an engine in a line, for Python users whose program is an event loop.

Knows how to assemble and the engine's client; nothing of what happens below.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

from corekit.api import Prompt, RequestOutput, SamplingParams

from .asked import AnyPrompt, Message, as_conversation, as_params, as_prompt
from .whole import whole

if TYPE_CHECKING:
    from corekit.compose.assembly import Assembly
    from corekit.compose.config import Config


class AsyncLLM:
    """An engine of its own, without frontends, whose answers are streams.

        async with AsyncLLM("path/to/model", max_model_len=2048) as llm:
            async for output in llm.generate("The capital of France is"):
                print(output.outputs[0].text, end="")

    Its arguments are those of `LLM`. Making one loads the weights and takes as long as that; in a program whose event loop must
    not wait, `await asyncio.to_thread(AsyncLLM, source)` makes it beside the loop.

    Any number of tasks, event loops and threads may use it; requests beyond the queue's limit wait in line. Invariant: a request
    is alive only while its iterator is: closing that, or cancelling the task that reads it, aborts the request within one step.
    """

    def __init__(self, source: str | None = None, *, config: Config | Mapping[str, Any] | str | PathLike[str] | None = None, **options: Any) -> None:
        from corekit.compose.assemble import assemble
        from corekit.compose.given import configured

        self._assembly = assemble(configured(source, config, options), frontends=())
        self._assembly.start()
        # Runs once: on close, when nobody holds this any more, or at the exit of the interpreter while threads still work.
        self._end = weakref.finalize(self, self._assembly.close)

    @property
    def assembly(self) -> Assembly:
        """What it consists of: parts, configuration, pool."""
        return self._assembly

    def generate(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "",
        deadline: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answer as it comes: each output holds what is new since the last. A prompt is text, a list of ids or a `Prompt`.

        The rest is the EngineClient's: checked when the iterator is first advanced; InvalidRequest, RequestFailed, EngineDead.
        """
        asked = as_prompt(prompt)
        return self._news(asked, as_params(params, SamplingParams()), request_id=request_id, priority=priority, tenant=tenant, deadline=deadline)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "",
        deadline: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The same for a conversation. Without params an answer may fill the context."""
        asked = as_conversation(messages)
        given = as_params(params, SamplingParams(max_tokens=None))
        return self._news(asked, given, request_id=request_id, priority=priority, tenant=tenant, deadline=deadline)

    async def answer(
        self,
        prompt: AnyPrompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "",
        deadline: float | None = None,
    ) -> RequestOutput:
        """The whole answer to a prompt, as `generate` takes it, or to a conversation, as `chat` does. Cancelling it aborts the request."""
        is_chat = not isinstance(prompt, str | Prompt) and isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)
        asked = as_conversation(prompt) if is_chat else as_prompt(prompt)
        given = as_params(params, SamplingParams(max_tokens=None) if asked.messages is not None else SamplingParams())
        return await whole(self._news(asked, given, request_id=request_id, priority=priority, tenant=tenant, deadline=deadline), given)

    def close(self) -> None:
        """End the engine; requests that are alive end with an error or with what there is. Waits for the step that runs. A second call does nothing."""
        self._end()

    async def aclose(self) -> None:
        """The same without holding up the event loop, which brings those who wait their errors meanwhile."""
        await asyncio.to_thread(self._end)

    def __repr__(self) -> str:
        model = self._assembly.client.model
        return f"<AsyncLLM {model.name!r}, context {model.max_model_len:,} tokens{'' if self._end.alive else ', closed'}>"

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def _news(self, prompt: Prompt, params: SamplingParams, **given: Any) -> AsyncGenerator[RequestOutput, None]:
        """The client's own iterator, held together with this engine: nobody else may hold it."""
        async with aclosing(self._assembly.client.generate(prompt, params, patient=True, **given)) as news:
            async for output in news:
                yield output
