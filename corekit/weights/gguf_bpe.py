"""How a GGUF file's tokenizer splits, merges and decodes: the model part of tokenizer.json.

Two kinds: byte-level BPE, whose rule of splitting is named by `tokenizer.ggml.pre`, and sentencepiece BPE, whose merges
follow from the scores of its pieces. Only names of rules that are known here are accepted, since a wrong rule gives
plausible but wrong ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import SourceError
from .gguf_config import special_id

NORMAL = 1
MAX_PIECE_LENGTH = 1024
"""Of a sentencepiece vocabulary, in characters; sentencepiece itself makes none longer than 512 bytes. Every cut of a piece is tried."""
SPACE = "\u2581"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KNOWN_RULES = ("command-r", "default", "gpt-2", "llama-bpe", "llama-v3", "llama3", "qwen2", "refact", "smollm", "starcoder")
IGNORE_MERGES = ("llama-bpe", "llama3", "llama-v3")
"""Rules under which a word that is a token as a whole is never merged from its parts."""


def byte_level_rules(metadata: Mapping[str, Any], texts: Sequence[str], where: str) -> dict[str, Any]:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    splitting = _splitting(pre)
    if splitting is None:
        raise SourceError(
            f"{where}: the rule {pre!r} (tokenizer.ggml.pre) by which text is split is not known. "
            f"Known: {', '.join(KNOWN_RULES)}. Use the model's safetensors folder, which carries the rule itself."
        )
    merges = texts_of(metadata.get("tokenizer.ggml.merges"), "tokenizer.ggml.merges", where)
    return {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": splitting,
        "decoder": _byte_level(use_regex=True),
        "model": _bpe(texts, merges, ignore_merges=pre in IGNORE_MERGES),
    }


def sentencepiece_rules(metadata: Mapping[str, Any], texts: Sequence[str], types: Sequence[Any], where: str) -> dict[str, Any]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(texts) or not all(type(score) is float for score in scores):
        raise SourceError(f"{where}: tokenizer.ggml.scores does not fit the {len(texts)} tokens. The file is damaged.")
    longest = max((len(text) for text, kind in zip(texts, types, strict=True) if kind == NORMAL), default=0)
    if longest > MAX_PIECE_LENGTH:
        raise SourceError(f"{where}: a token has {longest} characters, at most {MAX_PIECE_LENGTH} are read. The file is damaged, or made to keep this busy.")
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    to_spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    from_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    unknown = special_id({"tokenizer.ggml.unknown_token_id": 0, **metadata}, "unknown", len(texts), where)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*([{"type": "Prepend", "prepend": SPACE}] if prefixed else []), from_spaces]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                to_spaces,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []),
            ],
        },
        "model": _bpe(texts, _merges_by_score(texts, types, scores), unk_token=None if unknown is None else texts[unknown], fuse_unk=True, byte_fallback=True),
    }


def _merges_by_score(texts: Sequence[str], types: Sequence[Any], scores: Sequence[float]) -> list[list[str]]:
    """Sentencepiece joins the neighbours whose joint piece scores highest; a list of merges says the same by its order."""
    pieces = {text: score for text, kind, score in zip(texts, types, scores, strict=True) if kind == NORMAL}
    ordered = sorted(pieces, key=lambda text: -pieces[text])
    return [[text[:at], text[at:]] for text in ordered for at in range(1, len(text)) if text[:at] in pieces and text[at:] in pieces]


def texts_of(values: Any, key: str, where: str) -> list[str]:
    if not isinstance(values, list) or not set(map(type, values)) <= {str}:
        raise SourceError(f"{where}: {key} is not a list of strings. The file is damaged.")
    return values


def _bpe(texts: Sequence[str], merges: Sequence[Any], **rules: Any) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {text: index for index, text in enumerate(texts)}, "merges": merges, **rules}


def _splitting(pre: str) -> dict[str, Any] | None:
    """The rule behind a name; None: not known."""
    if pre == "gpt-2":
        return _byte_level(use_regex=True)
    if pre in ("smollm", "starcoder", "refact", "command-r"):  # every digit alone, then as gpt-2
        return _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))
    if pre in IGNORE_MERGES:
        return _sequence(_split(CONTRACTIONS + WORDS % "{1,3}"), _byte_level(use_regex=False))
    if pre == "qwen2":
        return _sequence(_split(CONTRACTIONS + WORDS % ""), _byte_level(use_regex=False))
    if pre == "default":  # what llama.cpp does for files that name no rule
        punctuation = _split(r"[\p{P}\$\+<=>\^~\|]+")
        words = _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)")
        return _sequence(punctuation, words, _split(r"\p{N}+"), _split("[0-9][0-9][0-9]"), _byte_level(use_regex=False))
    return None


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}
