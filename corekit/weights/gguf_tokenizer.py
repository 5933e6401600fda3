"""tokenizer.json and tokenizer_config.json, written from the vocabulary, flags and chat template that a GGUF file carries.

Knows added tokens and what is put around a prompt; how text is split and merged is in `gguf_bpe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .errors import SourceError
from .gguf_bpe import IGNORE_MERGES, byte_level_rules, sentencepiece_rules, texts_of
from .gguf_config import special_id

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


def tokenizer_files_of(metadata: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """File name to content; empty when the file carries no vocabulary."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return {}
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise SourceError(
            f"{where}: a tokenizer of kind {kind!r} cannot be made from a GGUF file (gpt2, byte-level BPE, and llama, sentencepiece BPE, can). "
            "Use the model's safetensors folder instead."
        )
    texts = texts_of(tokens, "tokenizer.ggml.tokens", where)
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(texts))
    if not isinstance(types, list) or len(types) != len(texts):
        raise SourceError(f"{where}: tokenizer.ggml.token_type does not fit the {len(texts)} tokens. The file is damaged.")
    special = _special_tokens(metadata, texts, where)
    rules = byte_level_rules(metadata, texts, where) if kind == "gpt2" else sentencepiece_rules(metadata, texts, types, where)
    bos_by_default = kind == "llama" or metadata.get("tokenizer.ggml.pre") in IGNORE_MERGES
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(texts, types),
        "post_processor": _post_processor(metadata, special, bos_by_default),
        **rules,
    }
    settings: dict[str, Any] = {f"{name}_token": text for name, (_, text) in special.items()}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    return {"tokenizer.json": msgspec.json.encode(document), "tokenizer_config.json": msgspec.json.encode(settings)}


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
        index = special_id(metadata, key, len(texts), where)
        if index is not None:
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
