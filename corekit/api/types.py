"""Values that cross the slots: what a caller asks for and what comes back. Plain, frozen, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import InvalidRequest

API_VERSION = 1
"""Version of the contract. The core accepts plugins written against this version or the one before."""

FinishReason = Literal["stop", "length", "abort", "error"]

MAX_SAMPLES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 256
MAX_BIASED_IDS = 1024
MAX_LISTED_IDS = 1 << 18
MAX_BAD_WORDS = 256
MAX_SALT_CHARS = 1024
MAX_RETENTION_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request draws its tokens and when it ends. Bounds are checked on construction.

    Raises InvalidRequest, naming the field, its value and the limit. Ids are checked against the vocabulary at the door
    of the engine, which knows it.
    """

    n: int = 1
    """Independent samples of the same prompt, 1..128. They share the prompt's KV blocks."""
    temperature: float = 1.0
    """0 is greedy; 0..2. Very small values act as greedy and never overflow."""
    top_k: int = 0
    """Draw from the k likeliest ids only; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Draw from the smallest set of ids whose probability reaches p, (0, 1]."""
    min_p: float = 0.0
    """Drop ids whose probability is below min_p times that of the likeliest, 0..1."""
    repetition_penalty: float = 1.0
    """Logits of ids that stand in prompt or output are divided by it where positive, else multiplied; 0.01..10, 1 is none."""
    presence_penalty: float = 0.0
    """Taken from the logits of ids that stand in the output, -2..2."""
    frequency_penalty: float = 0.0
    """Taken from the logit of an id as often as it stands in the output, -2..2."""
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    """Added to the logits of these ids before the penalties, -100..100. At most 1024 ids; a mapping becomes pairs."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these ids are drawn; at least one. None: all."""
    banned_token_ids: tuple[int, ...] = ()
    """These ids are never drawn."""
    bad_words: tuple[str, ...] = ()
    """Texts whose ids are never completed by the answer: as they are written at its begin, after a space, and elsewhere. At most 256 of 256 characters."""
    seed: int | None = None
    """Makes the draws reproducible whatever else is in the batch; None: the engine picks one. A signed 64-bit integer."""
    max_tokens: int | None = 16
    """Most tokens generated per sample; None: what the context leaves."""
    min_tokens: int = 0
    """No EOS, stop id or stop string ends a sample before this many generated tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end a sample; a single string is accepted. At most 16 of 256 characters."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end a sample, besides EOS."""
    ignore_eos: bool = False
    """Go on after EOS."""
    include_stop_str_in_output: bool = False
    """Keep the stop string that ended the sample, once, at the end of its text."""
    logprobs: int | None = None
    """None: no logprobs. k: the logprob of each generated token and of the k likeliest ids at its position, 0..20."""
    prompt_logprobs: int | None = None
    """None: none. k: the same for every token of the prompt but the first, 0..20. Such a request reads no prefix cache."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with those of the same salt: nobody else can tell from a time what was asked before. 1 to 1024 characters."""
    cache_retention: float = 0.0
    """Seconds for which the KV of the prompt and its answer is asked to stay cached after it was computed or used, while memory allows; 0..604800."""
    skip_special_tokens: bool = True
    """Leave control tokens out of the text; token ids always hold them."""

    def __post_init__(self) -> None:
        stop: object = self.stop
        object.__setattr__(self, "stop", _strings("stop", (stop,) if isinstance(stop, str) else stop, MAX_STOPS))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids, most=MAX_STOP_IDS))
        object.__setattr__(self, "bad_words", _strings("bad_words", self.bad_words, MAX_BAD_WORDS))
        object.__setattr__(self, "banned_token_ids", _ids("banned_token_ids", self.banned_token_ids, most=MAX_LISTED_IDS))
        object.__setattr__(self, "logit_bias", _biases("logit_bias", self.logit_bias))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids, least=1, most=MAX_LISTED_IDS))
        _integer("n", self.n, 1, MAX_SAMPLES)
        _number("temperature", self.temperature, 0.0, 2.0)
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise invalid("min_tokens", self.min_tokens, f"an integer from 0 to max_tokens, which is {self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_TOP_LOGPROBS)
        salt: object = self.cache_salt
        if salt is not None and not (isinstance(salt, str) and 0 < len(salt) <= MAX_SALT_CHARS and _is_unicode(salt)):
            raise invalid("cache_salt", salt, f"a string of 1 to {MAX_SALT_CHARS} characters")
        _number("cache_retention", self.cache_retention, 0.0, MAX_RETENTION_SECONDS)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            _flag(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What to continue: exactly one of text, token_ids and messages.

    `messages` are rendered by the tokenizer's chat template with `template` as its options (`add_generation_prompt`,
    `continue_final_message` and what the template itself knows).
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    add_special_tokens: bool = True
    max_tokens: int | None = None
    """Only so many are kept, the last ones; None: all."""

    def __post_init__(self) -> None:
        given = [name for name in ("text", "token_ids", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequest(f"a prompt is exactly one of text, token_ids and messages, got {given or 'none of them'}", field="prompt")
        if self.token_ids is not None:
            object.__setattr__(self, "token_ids", _ids("prompt", self.token_ids))
        text: object = self.text
        if text is not None and not isinstance(text, str):
            raise invalid("prompt", text, "a string")
        for name in ("messages", "tools"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _mappings(name, getattr(self, name)))
        template: object = self.template
        if not isinstance(template, Mapping):
            raise invalid("template", template, "a mapping of template options")
        _flag("add_special_tokens", self.add_special_tokens)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms of the model's own probabilities, before temperature and filters."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the likeliest ids at this position, best first; as many as were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One sample. In a stream: what is new since the last output. From `LLM`: the whole.

    Text, ids and logprobs describe the same tokens, except that text ends before a stop string (unless included) and
    leaves out control tokens.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop id that ended the sample; None for EOS and for every other reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request's news, or its whole answer (see CompletionOutput)."""

    request_id: str
    prompt: str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """One entry a token of the prompt, None for the first, which nothing precedes; in a stream in the first output alone."""
    prompt_token_ids: tuple[int, ...] = ()


def invalid(name: str, value: object, limit: str, *, field: str = "") -> InvalidRequest:
    """The refusal of a value that is not what it must be, however long the value is. field: if the caller knows it by another name."""
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to write integers of more than 4300 digits
        shown = f"a {type(value).__name__} too long to write"
    return InvalidRequest(f"{name} must be {limit}, got {shown if len(shown) <= 60 else shown[:57] + '...'}", field=field or name)


def _integer(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise invalid(name, value, f"an integer from {least} to {most}")


def _number(name: str, value: object, least: float, most: float, *, above: bool = False, field: str = "") -> None:
    # Not-a-number compares false with everything, so the range check refuses it too.
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most or (above and value == least):
        raise invalid(name, value, f"a number {'above' if above else 'from'} {least:g} {'and at most' if above else 'to'} {most:g}", field=field or name)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise invalid(name, value, "true or false")


def _is_unicode(text: str) -> bool:
    """Whether it can be written; half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mappings(name: str, values: object) -> tuple[Mapping[str, Any], ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, Mapping) for v in values):
        raise invalid(name, values, "a list of objects")
    return tuple(values)


def _strings(name: str, values: object, most: int) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, str) for v in values):
        raise invalid(name, values, "a string or a list of strings" if name == "stop" else "a list of strings")
    if len(values) > most or any(not 0 < len(v) <= MAX_STOP_CHARS for v in values):
        raise invalid(name, list(values), f"at most {most} strings of 1 to {MAX_STOP_CHARS} characters")
    return tuple(values)


def _biases(name: str, given: object) -> tuple[tuple[int, float], ...]:
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    if isinstance(pairs, str) or not isinstance(pairs, Sequence) or not all(map(_is_pair, pairs)):
        raise invalid(name, given, "a mapping of token ids to numbers")
    ids = _ids(name, [pair[0] for pair in pairs], most=MAX_BIASED_IDS)
    for id, value in pairs:
        _number(f"{name}[{id}]", value, -100.0, 100.0, field=name)
    if len(set(ids)) < len(ids):
        raise invalid(name, given, "a mapping that names each token id once")
    return tuple((id, float(value)) for id, value in pairs)


def _is_pair(pair: object) -> bool:
    return isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], int) and not isinstance(pair[0], bool)


def _ids(name: str, values: object, *, least: int = 0, most: int | None = None) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise invalid(name, values, "a list of token ids")
    if set(map(type, values)) - {int} and not all(isinstance(v, int) and not isinstance(v, bool) for v in values):  # long lists are all of int
        raise invalid(name, values, "a list of token ids")
    if len(values) < least or (most is not None and len(values) > most):
        raise InvalidRequest(f"{name} must be {least} to {most} token ids, got {len(values)}", field=name)
    return tuple(values)
