"""tokenizer.json and tokenizer_config.json, written from the vocabulary, merges and flags that a GGUF file carries.

What text is split into before merging is named by `tokenizer.ggml.pre`; only names whose rule is known here are
accepted, since a wrong rule gives plausible but wrong ids. Knows nothing of tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import SourceError

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _splitting(pre: str) -> dict[str, Any] | None:
    """The rule behind a name; None: not known."""
    if pre == "gpt-2":
        return _byte_level(use_regex=True)
    if pre in ("smollm", "starcoder", "refact", "command-r"):  # every digit alone, then as gpt-2
        return _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))
    if pre in ("llama-bpe", "llama3", "llama-v3"):
        return _sequence(_split(CONTRACTIONS + WORDS % 3), _byte_level(use_regex=False))
    if pre == "qwen2":
        return _sequence(_split(CONTRACTIONS + WORDS.replace("{1,%d}", "")), _byte_level(use_regex=False))
    if pre == "default":  # what llama.cpp does for files that name no rule
        punctuation = _split(r"[\p{P}\$\+<=>\^~\|]+")
        words = _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)")
        return _sequence(punctuation, words, _split(r"\p{N}+"), _split("[0-9][0-9][0-9]"), _byte_level(use_regex=False))
    return None


KNOWN_RULES = ("command-r", "default", "gpt-2", "llama-bpe", "llama-v3", "llama3", "qwen2", "refact", "smollm", "starcoder")
IGNORE_MERGES = ("llama-bpe", "llama3", "llama-v3")
"""Rules under which a word that is a token as a whole is never merged from its parts."""
BOS_BY_DEFAULT = IGNORE_MERGES


def tokenizer_files_of(metadata: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """File name to content; empty when the file carries no vocabulary."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return {}
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise SourceError(
            f"{where}: a tokenizer of kind {kind!r} cannot be made from a GGUF file (gpt2, which is byte-level BPE, can). "
            "Use the model's safetensors folder instead."
        )
    pre = metadata.get("tokenizer.ggml.pre", "default")
    rule = _splitting(pre)
    if rule is None:
        raise SourceError(
            f"{where}: the rule {pre!r} (tokenizer.ggml.pre) by which text is split is not known. "
            f"Known: {', '.join(KNOWN_RULES)}. Use the model's safetensors folder, which carries the rule itself."
        )
    texts = _texts(tokens, "tokenizer.ggml.tokens", where)
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(texts))
    if not isinstance(types, list) or len(types) != len(texts):
        raise SourceError(f"{where}: tokenizer.ggml.token_type does not fit the {len(texts)} tokens. The file is damaged.")
    special = _special_tokens(metadata, texts, where)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(texts, types),
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": rule,
        "post_processor": _post_processor(metadata, special, pre in BOS_BY_DEFAULT),
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in IGNORE_MERGES,
            "vocab": {text: index for index, text in enumerate(texts)},
            "merges": _texts(metadata.get("tokenizer.ggml.merges"), "tokenizer.ggml.merges", where),
        },
    }
    settings: dict[str, Any] = {f"{name}_token": text for name, (_, text) in special.items()}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    return {"tokenizer.json": json.dumps(document).encode(), "tokenizer_config.json": json.dumps(settings).encode()}


def _texts(values: Any, key: str, where: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise SourceError(f"{where}: {key} is not a list of strings. The file is damaged.")
    return values


def _added_tokens(texts: Sequence[str], types: Sequence[Any]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": texts[index], **flags, "special": kind != USER_DEFINED}
        for index, kind in enumerate(types)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and texts[index]
    ]


def _special_tokens(metadata: Mapping[str, Any], texts: Sequence[str], where: str) -> dict[str, tuple[int, str]]:
    """bos, eos, unk and pad, where the file names them: id and text."""
    found = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is None:
            continue
        if type(index) is not int or not 0 <= index < len(texts):
            raise SourceError(f"{where}: tokenizer.ggml.{key}_token_id is {index!r}, there are {len(texts)} tokens. The file is damaged.")
        found[name] = (index, texts[index])
    return found


def _post_processor(metadata: Mapping[str, Any], special: Mapping[str, tuple[int, str]], bos_by_default: bool) -> dict[str, Any] | None:
    """The rule of add_special: BOS before, EOS after, as the file's flags say."""
    before = ["bos"] if metadata.get("tokenizer.ggml.add_bos_token", bos_by_default) and "bos" in special else []
    after = ["eos"] if metadata.get("tokenizer.ggml.add_eos_token", False) and "eos" in special else []
    if not before and not after:
        return None

    def piece(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": special[name][1], "type_id": 0}}

    def around(sequence: str) -> list[dict[str, Any]]:
        return [*map(piece, before), {"Sequence": {"id": sequence, "type_id": 0}}, *map(piece, after)]

    used = {special[name][1]: {"id": special[name][1], "ids": [special[name][0]], "tokens": [special[name][1]]} for name in before + after}
    return {"type": "TemplateProcessing", "single": around("A"), "pair": around("A") + around("B"), "special_tokens": used}
