"""A small right tokenizer, and broken ones: one fault each, of a kind that an author makes, and the law that must see it."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from corekit.api import ChatPrompt, InvalidRequest, Provider, TokenDecoder

BOS, EOS = 0, 1
CONTROL = (b"<s>", b"</s>")
SINGLE = tuple(bytes([value]) for value in range(256))
JOINED = (b" the", b" x", b"He", b"llo", b"\n\n", "é".encode(), "世界".encode(), b"\xf0\x9f", b"\xe3\x82", b"    ")
PIECES = (*CONTROL, *SINGLE, *JOINED)
ID_OF = {piece: id for id, piece in enumerate(PIECES)}
LONGEST = max(map(len, PIECES))


class Decoder:
    def __init__(self, pieces: Sequence[bytes], *, drops_space: bool) -> None:
        self._pieces = pieces
        self._drops_space = drops_space
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id] if token_id < len(self._pieces) else b""
        if self._drops_space and piece:
            piece, self._drops_space = piece.removeprefix(b" "), False
        return self._decode(piece)

    def finish(self) -> str:
        return self._decode(b"", True)


class Right:
    """Two control tokens, bytes, some joined pieces; a space before every text, BOS before every raw prompt."""

    vocab_size = len(PIECES)
    eos_token_ids: tuple[int, ...] = (EOS,)
    has_chat_template = True
    hidden = (BOS, EOS)

    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        return ([BOS] if add_special else []) + (self.ids(b" " + text.encode()) if text else [])

    def ids(self, raw: bytes, *, plain: bool = True) -> list[int]:
        """The longest piece that fits, again and again; control tokens only if the text is not plain."""
        ids = []
        at = 0
        while at < len(raw):
            pieces = (raw[at : at + length] for length in range(LONGEST, 0, -1))
            piece = next(piece for piece in pieces if piece in ID_OF and not (plain and piece in CONTROL))
            ids.append(ID_OF[piece])
            at += len(piece)
        return ids

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, **options: Any) -> ChatPrompt:
        text, ids = "", []
        for message in messages:
            content = message.get("content")
            if not isinstance(content, str) or re.search("[\ud800-\udfff]", content):
                raise InvalidRequest("a message needs content that is text", field="messages")
            text += f"<s>{content}</s>"
            ids += self.turn(content)
        return ChatPrompt(text=text, token_ids=tuple(ids))

    def turn(self, content: str) -> list[int]:
        return [BOS, *self.ids(content.encode()), EOS]

    def token_bytes(self, token_id: int) -> bytes:
        return PIECES[token_id] if token_id < len(PIECES) else b""

    def start_decoding(self, prompt_tail: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TokenDecoder:
        pieces = [b"" if skip_special_tokens and id in self.hidden else piece for id, piece in enumerate(PIECES)]
        return self.decoder(pieces, drops_space=not any(pieces[id] for id in prompt_tail))

    def decoder(self, pieces: Sequence[bytes], *, drops_space: bool) -> TokenDecoder:
        return Decoder(pieces, drops_space=drops_space)


class EndsBeyondTheVocabulary(Right):
    eos_token_ids = (len(PIECES),)


class CountsOnNoPadding(Right):
    def token_bytes(self, token_id: int) -> bytes:
        return PIECES[token_id]


class SpecialIdsAlways(Right):
    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        return super().encode(text)


class BosIsShown(Right):
    hidden = (EOS,)  # type: ignore[assignment]


class ScratchOfAllThreads(Right):
    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        self._text = text
        time.sleep(0)
        return super().encode(self._text, add_special=add_special)


class GlyphsForBytes(Right):
    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id).replace(b" ", "\u2581".encode())


class Strips(Right):
    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        return super().encode(text.strip(), add_special=add_special)


class Truncates(Right):
    """The file says how long a text may be."""

    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        return super().encode(text, add_special=add_special)[:2048]


class LosesTheRest(Right):
    def decoder(self, pieces: Sequence[bytes], *, drops_space: bool) -> TokenDecoder:
        class Forgetful(Decoder):
            def finish(self) -> str:
                return ""

        return Forgetful(pieces, drops_space=drops_space)


class ShowsControlTokens(Right):
    def start_decoding(self, prompt_tail: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TokenDecoder:
        return super().start_decoding(prompt_tail, skip_special_tokens=False)


class ForgetsThePrompt(Right):
    def start_decoding(self, prompt_tail: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TokenDecoder:
        return super().start_decoding((), skip_special_tokens=skip_special_tokens)


class ShowsHalves(Right):
    def decoder(self, pieces: Sequence[bytes], *, drops_space: bool) -> TokenDecoder:
        class Hasty(Decoder):
            def push(self, token_id: int) -> str:
                return super().push(token_id) + super().finish()

        return Hasty(pieces, drops_space=drops_space)


class WaitsForValidBytes(Right):
    def decoder(self, pieces: Sequence[bytes], *, drops_space: bool) -> TokenDecoder:
        class Hopeful(Decoder):
            held = ""

            def push(self, token_id: int) -> str:
                self.held += super().push(token_id)
                shown, self.held = ("", self.held) if self.held.endswith("\ufffd") else (self.held, "")
                return shown

            def finish(self) -> str:
                return self.held + super().finish()

        return Hopeful(pieces, drops_space=drops_space)


class DecodesItAllAgain(Right):
    def decoder(self, pieces: Sequence[bytes], *, drops_space: bool) -> TokenDecoder:
        class Diligent(Decoder):
            raw, shown = b"", 0

            def push(self, token_id: int) -> str:
                self.raw += self._pieces[token_id] if token_id < len(self._pieces) else b""
                raw = self.raw.removeprefix(b" ") if drops_space else self.raw
                text = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(raw)
                self.shown, start = len(text), self.shown
                return text[start:]

            def finish(self) -> str:
                return (self.raw.removeprefix(b" ") if drops_space else self.raw).decode(errors="replace")[self.shown :]

        return Diligent(pieces, drops_space=drops_space)


class OneDecoderForAll(Right):
    def __init__(self) -> None:
        self._one = Decoder(PIECES, drops_space=False)

    def decoder(self, pieces: Sequence[bytes], *, drops_space: bool) -> TokenDecoder:
        self._one.__init__(pieces, drops_space=drops_space)  # type: ignore[misc]
        return self._one


class RendersWithoutATemplate(Right):
    has_chat_template = False


class BosTwice(Right):
    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, **options: Any) -> ChatPrompt:
        chat = super().apply_chat_template(messages)
        return ChatPrompt(text=chat.text, token_ids=(BOS, *chat.token_ids))


class TrustsMessages(Right):
    def turn(self, content: str) -> list[int]:
        return [BOS, *self.ids(content.encode(), plain=False), EOS]


class StumblesOverMessages(Right):
    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, **options: Any) -> ChatPrompt:
        text = "".join(f"<s>{message['content'].strip()}</s>" for message in messages)
        return ChatPrompt(text=text, token_ids=super().apply_chat_template(messages).token_ids)


class TakesMessagesApart(Right):
    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, **options: Any) -> ChatPrompt:
        chat = super().apply_chat_template(messages)
        for message in messages:
            message.pop("content")  # type: ignore[attr-defined]
        return chat


MUTANTS: Mapping[type[Right], str] = {
    EndsBeyondTheVocabulary: "test_ids_are_of_the_vocabulary",
    CountsOnNoPadding: "test_every_id_stands_for_bytes",
    SpecialIdsAlways: "test_special_ids_stand_around_the_text",
    BosIsShown: "test_special_ids_leave_no_text",
    ScratchOfAllThreads: "test_encode_is_called_from_several_threads",
    GlyphsForBytes: "test_bytes_joined_are_the_text",
    Strips: "test_text_returns",
    Truncates: "test_long_texts_are_kept_whole",
    LosesTheRest: "test_pushes_and_finish_are_one_decode",
    ShowsControlTokens: "test_control_tokens_are_left_out",
    ForgetsThePrompt: "test_only_the_start_of_a_text_loses_a_space",
    ShowsHalves: "test_no_push_shows_part_of_a_character",
    WaitsForValidBytes: "test_at_most_four_bytes_are_held",
    DecodesItAllAgain: "test_the_cost_of_a_push_does_not_grow",
    OneDecoderForAll: "test_decoders_are_independent",
    RendersWithoutATemplate: "test_a_conversation_is_rendered_or_refused",
    BosTwice: "test_rendered_ids_say_what_the_rendered_text_says",
    TrustsMessages: "test_messages_cannot_write_control_tokens",
    StumblesOverMessages: "test_odd_messages_are_refused_politely",
    TakesMessagesApart: "test_messages_stay_as_they_were",
}


def provider_of(part: type[Right]) -> Provider[Any]:
    return Provider(name="small", api=1, summary="a small vocabulary, written for a test", build=lambda context, options: part())
