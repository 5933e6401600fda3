"""The tokenizer that a model ships as tokenizer.json: `tokenizers` encodes, bytes of ids are decoded as they come.

Knows nothing of where the files come from, and never needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

import msgspec
from tokenizers import Tokenizer as Encoder

from corekit.api import ChatPrompt, CorekitError, InvalidRequest, TokenDecoder, WeightSource

from .chat_template import AddedToken, ChatTemplate
from .text_decoder import Lead, Utf8Decoder
from .token_bytes import TokenBytes, decoding_rule

MAX_ID = (1 << 22) - 1
"""The largest vocabularies have a quarter of a million tokens; a table of bytes by id is made, so that one huge id would fill the memory."""
MAX_ADDED_LENGTH = 1024
FETCH_AGAIN = "Likely a damaged or partial download; fetch the file again"


class TokenizerError(CorekitError, ValueError):
    """A file of the tokenizer cannot be used; the message names it."""


class HfTokenizer:
    """Invariant: nothing changes after construction but `_plain`, which is built once, when text first looks like a control token."""

    def __init__(self, source: WeightSource) -> None:
        files = source.tokenizer_files()
        if "tokenizer.json" not in files:
            raise TokenizerError(
                f"{source.name} has no tokenizer.json (it has {', '.join(sorted(files)) or 'no tokenizer files'}); this tokenizer reads nothing else"
            )
        self._where = source.name
        self._document = {"tokenizer.json": files["tokenizer.json"]}
        decoder = self._decoder()
        settings = self._json(files, "special_tokens_map.json") | self._json(files, "tokenizer_config.json")
        self._encoder = _encoder(files["tokenizer.json"], source.name)
        vocabulary = self._encoder.get_vocab()
        if (index := max(vocabulary.values(), default=0)) > MAX_ID:
            raise TokenizerError(f"{source.name}: tokenizer.json has a token with the id {index}, at most {MAX_ID} is accepted. {FETCH_AGAIN}.")
        self._special_ids = frozenset(index for index, token in self._encoder.get_added_tokens_decoder().items() if token.special)
        try:
            to_bytes, self._lead = decoding_rule(decoder)
        except ValueError as fault:
            raise TokenizerError(f"{source.name}: {fault}") from fault
        self._bytes_of = TokenBytes(index + 1 if vocabulary else 0, self._encoder.id_to_token, to_bytes)
        names = {key: text for key, value in settings.items() if key.endswith("_token") and (text := _token_text(value)) is not None}
        self._eos_token_ids = tuple(dict.fromkeys(_eos_ids(source, vocabulary.get(names.get("eos_token", "")))))
        self._template = self._read_template(files, settings, names)
        self._plain: Any = None
        self._plain_lock = Lock()

    def _read_template(self, files: Mapping[str, bytes], settings: Mapping[str, Any], names: Mapping[str, str]) -> ChatTemplate | None:
        name = "chat_template.jinja" if "chat_template.jinja" in files else "tokenizer_config.json"
        text = self._text(files, name) if name == "chat_template.jinja" else settings.get("chat_template")
        if isinstance(text, list):  # several by name; the one for ordinary conversations
            text = next((entry.get("template") for entry in text if isinstance(entry, dict) and entry.get("name") == "default"), None)
        if not isinstance(text, str):
            return None
        added = [
            AddedToken(text=token.content, special=token.special, lstrip=token.lstrip, rstrip=token.rstrip)
            for token in self._encoder.get_added_tokens_decoder().values()
        ]
        if (longest := max((len(token.text) for token in added), default=0)) > MAX_ADDED_LENGTH:
            raise TokenizerError(f"{self._where}: tokenizer.json adds a token of {longest} characters, at most {MAX_ADDED_LENGTH} are accepted. {FETCH_AGAIN}.")
        try:
            return ChatTemplate(text, added=added, names=names)
        except Exception as fault:  # a template is a program; it can be wrong in any way
            line = f" (line {fault.lineno})" if hasattr(fault, "lineno") else ""
            raise TokenizerError(
                f"{self._where}: the chat template in {name} cannot be read: {fault}{line}. "
                "Likely a damaged file, or one written for a newer version of transformers; fetch it again, or correct it"
            ) from fault

    def _decoder(self) -> Any:
        """The rule of decoding, without a Python object for everything else in the file. Raises TokenizerError for what is no JSON object."""
        text = self._text(self._document, "tokenizer.json")
        try:
            return msgspec.json.decode(text, type=_OfDocument).decoder
        except (msgspec.MsgspecError, RecursionError):
            return self._json(self._document, "tokenizer.json").get("decoder")  # says what is wrong, and where

    def _text(self, files: Mapping[str, bytes], name: str) -> str:
        try:
            return files[name].decode()
        except UnicodeDecodeError as fault:
            raise TokenizerError(f"{self._where}: {name} is not UTF-8 text ({fault.reason} at byte {fault.start}). {FETCH_AGAIN}.") from fault

    def _json(self, files: Mapping[str, bytes], name: str) -> dict[str, Any]:
        try:
            content = json.loads(self._text(files, name)) if name in files else {}
        except (json.JSONDecodeError, RecursionError) as fault:
            raise TokenizerError(f"{self._where}: {name} is not JSON: {fault}. {FETCH_AGAIN}.") from fault
        if not isinstance(content, dict):
            raise TokenizerError(f"{self._where}: {name} is not a JSON object. {FETCH_AGAIN}.")
        return content

    @property
    def vocab_size(self) -> int:
        return len(self._bytes_of)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._eos_token_ids

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        return _ids(self._encoder, text, add_special=add_special)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None, **options: Any) -> ChatPrompt:
        """Nothing is added around the prompt: BOS is the template's to write, so there is never a second one."""
        if self._template is None:
            raise InvalidRequest("this model has no chat template; send a completion with a plain prompt instead", field="messages")
        pieces = self._template.render(messages, tools, options)
        token_ids: list[int] = []
        for piece in pieces:
            token_ids += _ids(self._plain_encoder() if piece.plain else self._encoder, piece.text, add_special=False)
        return ChatPrompt(text="".join(piece.text for piece in pieces), token_ids=tuple(token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes_of(token_id)

    def start_decoding(self, prompt_tail: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TokenDecoder:
        """The space that sentencepiece puts before a text is dropped only where no text comes before."""
        hidden = self._special_ids if skip_special_tokens else frozenset[int]()
        starts_text = not any(index not in hidden and self._bytes_of(index) for index in prompt_tail)
        return Utf8Decoder(self._bytes_of, hidden=hidden, lead=self._lead if starts_text else Lead.KEPT)

    def _plain_encoder(self) -> Any:
        """The same encoder, blind to control tokens."""
        with self._plain_lock:
            if self._plain is None and self._template is not None:
                control = self._template.control_tokens
                document = self._json(self._document, "tokenizer.json")
                document["added_tokens"] = [token | {"special": token["special"] or token["content"] in control} for token in document["added_tokens"]]
                document["pre_tokenizer"] = _without_first_space(document.get("pre_tokenizer"))
                self._plain = _encoder(json.dumps(document).encode(), "the plain reading of tokenizer.json")
                self._plain.encode_special_tokens = True
            return self._plain


class _OfDocument(msgspec.Struct):
    """What is read of a tokenizer.json here."""

    decoder: Any = None


def _encoder(document: bytes, where: str) -> Any:
    try:
        encoder = Encoder.from_buffer(document)
    except Exception as fault:  # tokenizers raises bare Exception for every fault of the file
        raise TokenizerError(
            f"{where}: tokenizer.json cannot be read: {fault}. Likely a damaged file, or one written for a newer version of tokenizers; fetch it again"
        ) from fault
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _ids(encoder: Any, text: str, *, add_special: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        raise InvalidRequest(f"the text must be valid Unicode: {fault.reason} at character {fault.start}", field="prompt") from fault
    (encoded,) = encoder.encode_batch_fast([text], add_special_tokens=add_special)  # unlike encode, it lets other threads run meanwhile
    ids: list[int] = encoded.ids
    return ids


def _eos_ids(source: WeightSource, own: int | None) -> Iterator[int]:
    for settings in (source.generation_config, source.config):
        value = settings.get("eos_token_id")
        for index in value if isinstance(value, list | tuple) else (value,):
            if type(index) is int and index >= 0:
                yield index
    if own is not None:
        yield own


def _without_first_space(rule: Any) -> Any:
    """A piece of plain text never starts a prompt, so a space before the first word would be one too many."""
    if not isinstance(rule, dict):
        return rule
    if rule.get("type") == "Sequence":
        return rule | {"pretokenizers": [_without_first_space(part) for part in rule["pretokenizers"]]}
    return rule | {"prepend_scheme": "never"} if rule.get("prepend_scheme") == "first" else rule


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
