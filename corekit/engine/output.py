"""Text of one sample: decoding, stop strings, and the merging of what the caller has not taken yet.

Knows ids, a decoder and the sampling parameters; does not know the engine, threads or who listens. The rules:

- A stop string ends the sample at the first character that completes it, as a reader of single characters would see it:
  the answer depends on the text alone, not on how tokens or steps split it. Of several that are completed by the same
  character the longest counts.
- Text is held back only while it is a proper prefix of some stop string, and given out at the end of the sample.
- A stop string that is completed before token number `min_tokens` is ordinary text, then and later. One that begins
  before and is completed at or after that token counts.
- The ids end with the token that completed the stop string; what the engine sent beyond it is dropped.
- A stop string that is completed by the sample's last token counts, even if that token also ended the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from corekit.api import CompletionOutput, FinishReason, SamplingParams, TokenDecoder, TokenLogprob
from corekit.engine.events import SampleDelta


class StopMatch(NamedTuple):
    end: int
    start: int
    string: str


class StopStrings:
    """The stop strings of a request. Holds no state of a sample: all samples of a request share one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._longest = max(map(len, strings), default=0)
        self._initials = frozenset(string[0] for string in strings)

    def find(self, text: str, num_seen: int) -> StopMatch | None:
        """The first string to be completed beyond the first num_seen characters, which are a held tail and were searched before."""
        matches = []
        for string in self._strings:
            start = text.find(string, max(0, num_seen - len(string) + 1))
            if start >= 0:
                matches.append(StopMatch(start + len(string), start, string))
        return min(matches, default=None)

    def num_held(self, text: str) -> int:
        """Length of the longest tail of text that is a proper prefix of some stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._initials:
                tail = text[start:]
                if any(len(string) > len(tail) and string.startswith(tail) for string in self._strings):
                    return len(tail)
        return 0


class SampleOutput:
    """One sample on its way to the caller.

    What `take` returned, joined, is always a prefix of the sample's whole answer, and all of it once `finish_reason` is
    set and taken. What waits to be taken is merged, so a slow caller costs at most one answer.
    """

    def __init__(self, index: int, decoder: TokenDecoder, params: SamplingParams, stops: StopStrings) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self._decoder = decoder
        self._params = params
        self._stops = stops
        self._num_tokens = 0
        self._held = ""
        self._stop_reason: str | int | None = None
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._taken_end = False

    def push(self, delta: SampleDelta) -> None:
        """Take over what a step brought. Ignored once the sample has ended."""
        if self.finish_reason is not None:
            return
        for count, token_id in enumerate(delta.token_ids, 1):
            self._num_tokens += 1
            text = self._decoder.push(token_id)
            if count == len(delta.token_ids) and delta.finish_reason is not None:
                text += self._decoder.finish()
            if self._add_text(text):
                self._add_tokens(delta, count)
                return
        self._add_tokens(delta, len(delta.token_ids))
        if delta.finish_reason is not None:
            if delta.stop_reason in self._params.stop_token_ids:  # an EOS id is no reason of the caller's
                self._stop_reason = delta.stop_reason
            self._end(delta.finish_reason, flush=not delta.token_ids)

    def end(self, reason: FinishReason) -> None:
        """End it from outside, with the text that is held back. Ignored once the sample has ended."""
        if self.finish_reason is None:
            self._end(reason, flush=True)

    def take(self) -> CompletionOutput | None:
        """What is new since the last call, or None."""
        ended = self.finish_reason is not None and not self._taken_end
        if not (ended or self._token_ids or self._text):
            return None
        output = CompletionOutput(
            index=self.index,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )
        self._text, self._token_ids, self._taken_end = [], [], ended
        if self._logprobs is not None:
            self._logprobs = []
        return output

    def _add_text(self, text: str) -> bool:
        """Add the text of token number `_num_tokens`; True when a stop string has ended the sample."""
        if not self._params.stop:
            self._text.append(text)
            return False
        num_seen, text = len(self._held), self._held + text
        match = self._stops.find(text, num_seen) if self._num_tokens >= self._params.min_tokens else None
        if match is not None:
            self._text.append(text[: match.end if self._params.include_stop_str_in_output else match.start])
            self._held = ""
            self.finish_reason, self._stop_reason = "stop", match.string
            return True
        num_free = len(text) - self._stops.num_held(text)
        self._held = text[num_free:]
        if num_free:
            self._text.append(text[:num_free])
        return False

    def _add_tokens(self, delta: SampleDelta, count: int) -> None:
        self._token_ids += delta.token_ids[:count]
        if self._logprobs is not None and delta.logprobs is not None:
            self._logprobs += delta.logprobs[:count]

    def _end(self, reason: FinishReason, *, flush: bool) -> None:
        if flush and self._add_text(self._decoder.finish()):
            return
        self._text.append(self._held)
        self._held = ""
        self.finish_reason = reason
