"""A small engine with the real one's outside: seats, an inbox, one token a step. What it says can be written down by the test."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from corekit.api import ChatPrompt, EngineStats, InvalidRequest, ModelFacts
from corekit.engine.client import Client
from corekit.engine.events import SampleDelta
from corekit.engine.request import NewRequest

EOS = 256


class Bytes:
    """Ids are bytes; 256 is EOS."""

    vocab_size = 257
    eos_token_ids = (EOS,)
    has_chat_template = True

    def encode(self, text, *, add_special=True):
        if text == "boom":
            raise RuntimeError("tokenizer fell over")
        return list(text.encode())

    def apply_chat_template(self, messages, *, tools=None, **options):
        if any("content" not in message for message in messages):
            raise InvalidRequest("a message has no content", field="messages")
        text = "".join(f"{message['role']}:{message['content']}\n" for message in messages if message["content"])
        if text and options.get("add_generation_prompt"):
            text += "assistant:"
        return ChatPrompt(text=text, token_ids=tuple(text.encode()))

    def token_bytes(self, token_id):
        return bytes([token_id])

    def start_decoding(self, prompt_tail=(), *, skip_special_tokens=True):
        return BytesDecoder()


class BytesDecoder:
    def __init__(self) -> None:
        import codecs

        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id):
        if token_id == 0:
            raise RuntimeError("decoder fell over")
        return "" if token_id == EOS else self._utf8.decode(bytes([token_id]))

    def finish(self):
        return self._utf8.decode(b"", True)


class Alive:
    def __init__(self, asked: NewRequest) -> None:
        self.asked = asked
        self.num_prefill = len(asked.token_ids)
        self.ran = False
        self.num_done = dict.fromkeys(range(asked.params.n), 0)


Script = Callable[[NewRequest, int, int], int]


def echo(asked: NewRequest, sample: int, at: int) -> int:
    """The prompt again and again."""
    return asked.token_ids[at % len(asked.token_ids)]


class StandIn:
    """`script(request, sample, n)` gives the n-th token, a negative one a fault of the row; `fault` makes a step raise."""

    def __init__(self, script: Script = echo, *, seats: int = 4, chunk: int = 1024, step_seconds: float = 0.0, overshoot: int = 1, cached: int = 0) -> None:
        self.script, self.seats, self.chunk, self.step_seconds, self.overshoot, self.cached = script, seats, chunk, step_seconds, overshoot, cached
        self.lock = threading.Lock()
        self.inbox: deque = deque()
        self.waiting: list[Alive] = []
        self.running: list[Alive] = []
        self.started: list[str] = []
        self.reasons: list[tuple[str, str]] = []
        self.fault: Exception | None = None
        self.num_steps = self.num_tokens = 0

    def submit(self, asked):
        with self.lock:
            self.inbox.append(asked)

    def abort(self, request_id, *, sample=None, reason="abort"):
        with self.lock:
            self.inbox.append((request_id, sample, reason))

    def refusal(self, num_prompt_tokens, num_samples):
        if num_prompt_tokens + 1 > 300:
            return f"{num_prompt_tokens + 1} tokens are needed, the pool has 300"
        return f"n = {num_samples} needs as many seats, there are {self.seats}" if num_samples > self.seats else None

    @property
    def num_waiting(self):
        with self.lock:
            return len(self.waiting) + sum(isinstance(m, NewRequest) for m in self.inbox)

    @property
    def num_queued(self):
        with self.lock:
            return sum(not a.ran for a in self.waiting) + sum(isinstance(m, NewRequest) for m in self.inbox)

    @property
    def num_queued_tokens(self):
        with self.lock:
            return sum(len(a.asked.token_ids) for a in self.waiting if not a.ran) + sum(len(m.token_ids) for m in self.inbox if isinstance(m, NewRequest))

    @property
    def idle(self):
        return not (self.inbox or self.waiting or self.running)

    @property
    def num_running(self):
        return len(self.running)

    def stats(self):
        return EngineStats(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_blocks=0,
            num_free_blocks=0,
            block_size=16,
            num_prompt_tokens=0,
            num_output_tokens=self.num_tokens,
            num_cached_tokens=0,
            num_preemptions=0,
            num_finished={},
            num_steps=self.num_steps,
        )

    def check_health(self):
        if self.fault is not None:
            raise self.fault

    def step(self):
        deltas: list[SampleDelta] = []
        self._drain(deltas)
        if self.fault is not None:
            raise self.fault
        time.sleep(self.step_seconds)
        while self.waiting and sum(len(a.num_done) for a in self.running) + self.waiting[0].asked.params.n <= self.seats:
            self.running.append(self.waiting.pop(0))
            self.started.append(self.running[-1].asked.request_id)
        for alive in list(self.running):
            self._advance(alive, deltas)
        self.num_steps += 1
        return deltas

    def _drain(self, deltas):
        while self.inbox:
            with self.lock:
                message = self.inbox.popleft()
                if isinstance(message, NewRequest):
                    assert all(a.asked.request_id != message.request_id for a in self.waiting + self.running), "an id twice"
                    self.waiting.append(Alive(message))
                    continue
            request_id, sample, reason = message
            for alive in self.waiting + self.running:
                if alive.asked.request_id == request_id:
                    forked = alive in self.running and not alive.num_prefill
                    for i in list(alive.num_done) if sample is None else [sample]:
                        if i in alive.num_done:
                            self._end(alive, i, (), reason, deltas if forked or i == 0 else [])

    def _end(self, alive, sample, ids, reason, deltas, stop_reason=None, error=None):
        deltas.append(SampleDelta(alive.asked.request_id, sample, ids, None, reason, stop_reason, error, self.cached))
        del alive.num_done[sample]
        self.reasons.append((alive.asked.request_id, reason))
        if not alive.num_done:
            (self.running if alive in self.running else self.waiting).remove(alive)

    def _advance(self, alive, deltas):
        if alive.num_prefill:
            alive.num_prefill = max(0, alive.num_prefill - self.chunk)
            if alive.num_prefill:
                return
        asked = alive.asked
        for sample, done in list(alive.num_done.items()):
            ids: tuple[int, ...] = ()
            for _ in range(self.overshoot):
                token_id = self.script(asked, sample, done)
                if token_id < 0:
                    self._end(alive, sample, ids, "error", deltas, error="the row fell over")
                    break
                ids, done = (*ids, token_id), done + 1
                self.num_tokens += 1
                if token_id in asked.end_ids:
                    self._end(alive, sample, ids, "stop", deltas, stop_reason=token_id)
                    break
                if done == asked.max_tokens:
                    self._end(alive, sample, ids, "length", deltas)
                    break
            else:
                alive.num_done[sample] = done
                deltas.append(SampleDelta(asked.request_id, sample, ids, None, None, None, None, self.cached))

    def fail_all(self, message):
        self.waiting.clear()
        self.running.clear()
        return []


def facts(**changed) -> ModelFacts:
    known = {"name": "m", "aliases": (), "source": "none", "max_model_len": 400, "vocab_size": 257, "supports_logprobs": False, "created": 0}
    return ModelFacts(**{**known, **changed})


def client_of(engine, *, tokenizer=None, collector=None, queued: int = 64, tokens: int = 0, seed: int = 0, **changed) -> Client:
    tokenizer = tokenizer or Bytes()
    return Client(
        engine,
        tokenizer=tokenizer,
        eos_token_ids=tokenizer.eos_token_ids,
        model=facts(**changed),
        max_queued_requests=queued,
        max_queued_tokens=tokens,
        seed=seed,
        collector=collector,
    )


def spell(text: str, *, then: Sequence[int] = (EOS,)) -> Script:
    ids = [*text.encode(), *then]
    return lambda asked, sample, at: ids[min(at, len(ids) - 1)]
