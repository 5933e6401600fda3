"""A tokenizer without a vocabulary: ids 0 to 255 are bytes, 256 ends an answer. For tests and for models without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corekit.api import ChatPrompt, InvalidRequest, TokenDecoder

from .text_decoder import Utf8Decoder

EOS = 256
BYTES = tuple(bytes([value]) for value in range(256))
OPTIONS = ("add_generation_prompt", "continue_final_message")


class BytesTokenizer:
    """Every text is its UTF-8 bytes, nothing is added. Invariant: stateless, so any thread may call anything."""

    @property
    def vocab_size(self) -> int:
        return EOS + 1

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (EOS,)

    @property
    def has_chat_template(self) -> bool:
        return True

    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        """`add_special` adds nothing: there is no BOS."""
        try:
            return list(text.encode())
        except UnicodeEncodeError as fault:
            raise InvalidRequest(f"the text must be valid Unicode: {fault.reason} at character {fault.start}", field="prompt") from fault

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None, **options: Any) -> ChatPrompt:
        """One line `role: content` a message, then `assistant:`; a message that is to be continued stays without its line end."""
        if tools:
            raise InvalidRequest("the chat template of this tokenizer has no place for tools", field="tools")
        unknown = sorted(options.keys() - set(OPTIONS))
        if unknown:
            raise InvalidRequest(f"the chat template of this tokenizer knows {', '.join(OPTIONS)}, got {', '.join(unknown)}", field="template")
        if not messages:
            raise InvalidRequest("messages must hold at least one message, got none", field="messages")
        continued = bool(options.get("continue_final_message", False))
        asked = bool(options.get("add_generation_prompt", not continued))
        if continued and asked:
            raise InvalidRequest("add_generation_prompt and continue_final_message exclude each other", field="template")
        text = "".join(_line(message, index) for index, message in enumerate(messages))
        text = text.removesuffix("\n") if continued else text + ("assistant:" if asked else "")
        return ChatPrompt(text=text, token_ids=tuple(self.encode(text)))

    def token_bytes(self, token_id: int) -> bytes:
        return BYTES[token_id] if 0 <= token_id < EOS else b""

    def start_decoding(self, prompt_tail: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TokenDecoder:
        """Ids beyond 255 have no text, so `skip_special_tokens` changes nothing."""
        return Utf8Decoder(self.token_bytes)


def _line(message: Mapping[str, Any], index: int) -> str:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise InvalidRequest(f"messages[{index}] needs a role and a content that are text, got {role!r} and {type(content).__name__}", field="messages")
    return f"{role}: {content}\n"
