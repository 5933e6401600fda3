"""The client of the engine: runs its loop in a thread of its own and carries requests in and text out.

Knows the tokenizer, event loops and threads; does not know HTTP, blocks or how a step is planned.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from corekit.api import (
    EngineDead,
    EngineStats,
    FinishReason,
    Health,
    LogitsProcessor,
    ModelFacts,
    Overloaded,
    Prompt,
    RequestFailed,
    RequestOutput,
    SamplingParams,
    Tokenizer,
)
from corekit.engine.collector import Collector
from corekit.engine.constraints import CLOSED, Starter
from corekit.engine.door import Door, Encoded, check_identity, field_of
from corekit.engine.engine import Engine
from corekit.engine.line import Line
from corekit.engine.queue_room import QueueRoom
from corekit.engine.request import NewRequest
from corekit.engine.reset import Reset
from corekit.engine.stream import Stream
from corekit.engine.streams import News, Streams

log = logging.getLogger(__name__)

REST_SECONDS = 5.0
"""Between two looks at the executor, and at the garbage, of an idle engine."""


class Client:
    """Implements `EngineClient`; any number of event loops and threads may use it. eos_token_ids: of tokenizer and model.

    Invariant: `_lock` is never held during a step, and whatever is sent to the engine is sent under it, with a wake-up.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        model: ModelFacts,
        max_queued_requests: int,
        max_queued_tokens: int,
        seed: int,
        processors: Sequence[LogitsProcessor] = (),
        clock: Callable[[], float] = time.monotonic,
        collector: Collector | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._model = model
        self._room = QueueRoom(max_requests=max_queued_requests, max_tokens=max_queued_tokens or 4 * model.max_model_len)
        self._starter = Starter(processors)
        self._clock = clock
        self._collector = collector or Collector()  # one that is never started does nothing
        self._collects = collector is not None
        self._door = Door(tokenizer=tokenizer, eos_token_ids=eos_token_ids, model=model, refusal=engine.refusal)
        self._random = random.Random(seed)
        self._lock = threading.Condition()
        self._streams = Streams()
        self._line = Line()
        self._resets: set[Reset] = set()
        self._process = os.getpid()
        self._dead: str | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def model(self) -> ModelFacts:
        return self._model

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def start(self) -> None:
        """Start the engine's thread. Requests may come before. A second call does nothing."""
        with self._lock:
            if self._thread is None and self._dead is None:
                if self._collects:
                    self._collector.start()
                self._thread = threading.Thread(target=self._run, name="corekit-engine", daemon=True)
                self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        """Abort everything and end the thread, from any thread. A second call does nothing."""
        with self._lock:
            self._closing = True
            self._dead = self._dead or CLOSED
            self._lock.notify_all()
            thread = self._thread
        self._starter.close()
        if thread is None:
            self._drop_all()
        elif thread is not threading.current_thread():
            thread.join(timeout)
            if thread.is_alive():
                log.warning("the engine's thread did not end within %g s: a step hangs in the executor or the model. It ends with the process", timeout)
                self._drop_all()
        self._collector.close()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "",
        deadline: float | None = None,
        patient: bool = False,
    ) -> AsyncGenerator[RequestOutput, None]:
        """See EngineClient. patient: wait in line for room in the queue instead of raising Overloaded."""
        check_identity(request_id, priority, tenant, deadline)
        self._check_alive()
        encoded = await self._door.encode(prompt)
        asked = self._door.ask(encoded.token_ids, params, request_id or uuid.uuid4().hex, field=field_of(prompt))
        constraints = await self._starter.start(asked.request_id, asked.token_ids, params)
        asked = replace(asked, constraints=constraints, priority=priority, tenant=tenant, deadline=deadline)

        def queue() -> Stream:
            return self._queue(encoded, asked)

        stream = await self._queue_in_line(queue) if patient else queue()
        try:
            while True:
                output = await stream.next()
                yield output
                if output.finished:
                    return
        finally:
            self._leave(stream)

    def abort(self, request_id: str) -> bool:
        """End a request with reason "abort"; its id is free at once. False: no such request is alive."""
        with self._lock:
            stream = self._streams.unname(request_id)
            if stream is not None:
                self._abort(stream)
            return stream is not None

    async def reset_prefix_cache(self) -> int:
        reset = Reset()
        with self._lock:
            self._check_alive()
            self._resets.add(reset)
            self._engine.forget_prefixes(reset.hear)
            self._lock.notify_all()
        try:
            return await reset.answer
        finally:
            with self._lock:
                self._resets.discard(reset)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def health(self) -> Health:
        dead = self._dead
        return Health(state="ready") if dead is None else Health(state="dead", reason=dead)

    # -- on the callers' event loops ---------------------------------------------------------------------------------

    def _queue(self, prompt: Encoded, asked: NewRequest) -> Stream:
        """Queue a checked request. Check and submission are one: of racing callers exactly as many pass as there is room for."""
        with self._lock:
            self._check_alive()
            engine_id = self._streams.engine_id(asked.request_id)
            self._room.check(self._engine, len(asked.token_ids))
            try:
                stream = Stream(request_id=asked.request_id, engine_id=engine_id, prompt=prompt, params=asked.params, tokenizer=self._tokenizer)
            except Exception as fault:
                raise self._decoder_fault(fault) from fault
            seed = self._random.getrandbits(63) if asked.params.seed is None else asked.params.seed
            self._engine.submit(replace(asked, request_id=engine_id, seed=seed, arrival_time=self._clock()))
            self._streams.add(stream)
            self._lock.notify_all()
        return stream

    async def _queue_in_line(self, queue: Callable[[], Stream]) -> Stream:
        """Try when it is this caller's turn and whenever a step may have made room."""
        with self._lock:
            place = self._line.enter()
        try:
            while True:
                await place.wait()
                try:
                    return queue()
                except Overloaded:
                    continue
        finally:
            with self._lock:
                self._line.leave(place)

    def _check_alive(self) -> None:
        if os.getpid() != self._process:
            raise EngineDead(f"this engine lives in process {self._process} and its thread did not come along into this fork: make an engine here")
        if self._dead is not None:
            raise EngineDead(self._dead)

    def _hear(self, news: News) -> None:
        """Turn what a step brought for this loop into text. A fault in a decoder ends its own request only."""
        for stream, delta in news:
            try:
                if stream.hear(delta):
                    self._abort(stream, sample=delta.sample, reason="stop")
            except Exception as fault:
                error = self._decoder_fault(fault)
                error.__cause__ = fault
                stream.fail(error)
            if stream.ended:
                self._leave(stream)

    def _decoder_fault(self, fault: Exception) -> RequestFailed:
        log.debug("the decoder of the tokenizer raised", exc_info=fault)
        return RequestFailed(f"the decoder of the tokenizer ({type(self._tokenizer).__name__}) failed on this request: {type(fault).__name__}: {fault}")

    def _leave(self, stream: Stream) -> None:
        """Nobody waits for this request any more: forget it, and end it if the engine still has it. Any thread, any number of times."""
        with self._lock:
            if self._streams.remove(stream) and stream.num_open:
                self._abort(stream)

    def _abort(self, stream: Stream, *, sample: int | None = None, reason: FinishReason = "abort") -> None:
        """Tell the engine's thread, and wake it: what nobody needs must not wait for the next request."""
        with self._lock:
            self._engine.abort(stream.engine_id, sample=sample, reason=reason)
            self._streams.note_abort(stream)
            self._lock.notify_all()

    # -- on the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
            with self._lock:
                for engine_id in tuple(self._streams.engine_ids):
                    self._engine.abort(engine_id)
            while not self._engine.idle:
                self._step()
        except BaseException as fault:
            self._die(fault)
        self._drop_all()

    def _wait_for_work(self) -> bool:
        """Sleep while the engine is idle, looking after the executor now and then. False: close."""
        if self._engine.idle:
            self._collector.idle()
        else:
            self._collector.between_steps()
        while True:
            with self._lock:
                if self._engine.idle and not self._closing:
                    self._lock.wait(REST_SECONDS)
                if self._closing or not self._engine.idle:
                    return not self._closing
            self._collector.rest()
            self._engine.check_health()  # a rank that died while nobody asked: health has to say so before the next request

    def _step(self) -> None:
        with self._lock:
            self._streams.begin_step()
        deltas = self._engine.step()
        with self._lock:
            by_loop = self._streams.end_step(deltas)
            self._line.call()
        for loop, news in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._hear, news)
            except RuntimeError:  # the loop was closed with its iterators still open
                for stream, _ in news:
                    self._leave(stream)

    def _die(self, fault: BaseException) -> None:
        reason = f"the engine's loop failed: {type(fault).__name__}: {fault}"
        log.error("%s. Every request is answered with an error; restart the process", reason, exc_info=fault)
        with self._lock:
            self._dead = reason
        try:
            self._engine.fail_all(reason)
        except Exception:
            log.debug("the engine could not be cleared after its fault", exc_info=True)

    def _drop_all(self) -> None:
        """Answer whoever is left: nothing will be heard of them any more."""
        with self._lock:
            reason = self._dead or CLOSED
            streams = self._streams.clear()
            self._line.call_all()
            resets = tuple(self._resets)
        for reset in resets:
            reset.hear(EngineDead(reason))
        for stream in streams:
            try:
                stream.loop.call_soon_threadsafe(stream.fail, EngineDead(reason))
            except RuntimeError:
                log.debug("the event loop of request %s was closed before the engine", stream.request_id)
