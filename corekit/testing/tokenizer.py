"""Kit of slot `tokenizer`: ids are of the vocabulary, text comes back whole and in order, messages cannot write control tokens.

Whatever decodes is held to `token_bytes`: what one decode of some ids gives are their bytes, joined and read as UTF-8.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any, ClassVar

from corekit.api import ChatPrompt, InvalidRequest, Tokenizer

from .cost import growth
from .kit import Kit
from .spelling import ODD_MESSAGES, TEXTS, Vocabulary, decoded, streamed

_NUM_PADDING = 3
"""Ids beyond the vocabulary that are tried."""


class TokenizerKit(Kit):
    """A part that reads a source overrides `context`; one that is slow to build overrides `tokenizer` and shares it between laws.

    `texts`: what it must be able to read and write. `keeps_text`: ids of a text give that text back; False for one that
    normalises text. `eos_is_text`: what ends an answer is ordinary text (a line end, say), and no control token.
    """

    slot = "tokenizer"
    texts: ClassVar[Sequence[str]] = TEXTS
    keeps_text: ClassVar[bool] = True
    eos_is_text: ClassVar[bool] = False

    def tokenizer(self) -> Tokenizer:
        """What the laws look at; none of them changes it."""
        made: Tokenizer = self.build()
        return made

    def conversation(self, text: str) -> list[Mapping[str, Any]]:
        """Messages that hold the text and that the chat template accepts."""
        return [{"role": "user", "content": text}]

    # -- ids -------------------------------------------------------------------------------------------------------

    def test_ids_are_of_the_vocabulary(self) -> None:
        """`encode` gives integers from 0 up to `vocab_size`, and the ids that end an answer are such, each named once."""
        tokenizer = self.tokenizer()
        ids = set(range(tokenizer.vocab_size))
        assert ids, f"vocab_size is {tokenizer.vocab_size}, expected at least one id"
        for text in self._mixed_texts():
            wrong = [id for id in tokenizer.encode(text) if type(id) is not int or id not in ids]
            assert not wrong, f"encode({text!r}) gives {wrong[0]!r}, expected integers below vocab_size = {tokenizer.vocab_size}"
        ends = tokenizer.eos_token_ids
        assert isinstance(ends, tuple), f"eos_token_ids is a {type(ends).__name__}, expected a tuple"
        assert ids.issuperset(ends), f"eos_token_ids {ends} holds an id that is not of the vocabulary of {tokenizer.vocab_size}"
        assert len(set(ends)) == len(ends), f"eos_token_ids {ends} names an id twice"

    def test_every_id_stands_for_bytes(self) -> None:
        """`token_bytes` knows every id of the vocabulary; a padding id of the model beyond it stands for no bytes and no text."""
        tokenizer = self.tokenizer()
        for id in range(tokenizer.vocab_size):
            raw = tokenizer.token_bytes(id)
            assert type(raw) is bytes, f"token_bytes({id}) is {raw!r}, expected bytes"
        for id in range(tokenizer.vocab_size, tokenizer.vocab_size + _NUM_PADDING):
            raw, text = tokenizer.token_bytes(id), "".join(streamed(tokenizer, [id]))
            assert raw == b"", f"id {id} is beyond the vocabulary: token_bytes gives {raw!r}, expected no bytes"
            assert text == "", f"id {id} is beyond the vocabulary: its text is {text!r}, expected none"

    def test_special_ids_stand_around_the_text(self) -> None:
        """`add_special` puts the same ids around every text, is on by default, and off adds nothing, not even around an empty text."""
        tokenizer = self.tokenizer()
        assert list(tokenizer.encode("", add_special=False)) == [], "an empty text without special ids has no ids"
        around: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        for text in filter(None, self.texts):
            with_special, plain = list(tokenizer.encode(text, add_special=True)), list(tokenizer.encode(text, add_special=False))
            assert list(tokenizer.encode(text)) == with_special, f"encode({text!r}) differs from the same with add_special=True, which is the default"
            splits = _splits(with_special, plain)
            assert splits, f"ids of {text!r} with special ids are {with_special}, expected {plain} with ids before or after"
            around = splits if not around else around & splits
            assert around, f"the ids around {text!r} differ from those around the texts before: {sorted(splits)}"

    def test_special_ids_leave_no_text(self) -> None:
        """What `add_special` adds is no text: a decoder that leaves out control tokens does not show it."""
        tokenizer = self.tokenizer()
        for text in self.texts:
            with_special = "".join(streamed(tokenizer, tokenizer.encode(text)))
            plain = "".join(streamed(tokenizer, tokenizer.encode(text, add_special=False)))
            assert with_special == plain, f"ids of {text!r} show as {with_special!r} with special ids, as {plain!r} without"

    def test_encode_is_called_from_several_threads(self) -> None:
        """Threads that encode and render at once get what each gets alone."""
        tokenizer = self.tokenizer()

        def both(text: str) -> tuple[list[int], ChatPrompt | None]:
            chat = tokenizer.apply_chat_template(self.conversation(text)) if tokenizer.has_chat_template else None
            return list(tokenizer.encode(text)), chat

        texts = [text * 3 for text in self._mixed_texts()]
        alone = [both(text) for text in texts]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(4) as pool:
                together = list(pool.map(both, texts))
        finally:
            sys.setswitchinterval(before)
        wrong = [text for text, one, other in zip(texts, alone, together, strict=True) if one != other]
        assert not wrong, f"{wrong[0]!r} is encoded in another way while other threads encode: keep what belongs to a call out of the tokenizer"

    # -- text ------------------------------------------------------------------------------------------------------

    def test_bytes_joined_are_the_text(self) -> None:
        """The bytes of a text's ids, joined, are the text in UTF-8; one space that the tokenizer itself puts first may precede it."""
        tokenizer = self.tokenizer()
        for text in self._kept_texts():
            raw = _raw(tokenizer, tokenizer.encode(text, add_special=False))
            assert raw in (text.encode(), b" " + text.encode()), f"token_bytes of the ids of {text!r} join to {raw!r}"

    def test_text_returns(self) -> None:
        """A text that is encoded and decoded is the same text."""
        tokenizer = self.tokenizer()
        for text in self._kept_texts():
            got = "".join(streamed(tokenizer, tokenizer.encode(text, add_special=False)))
            assert got == text, f"{text!r} comes back as {got!r}. For a tokenizer that cannot keep every text: keeps_text = False, or other `texts`"

    def test_long_texts_are_kept_whole(self) -> None:
        """Nothing is cut from a text of thousands of characters: what is too long for the model, the engine refuses itself."""
        tokenizer = self.tokenizer()
        text = "".join(self._kept_texts()) * 4
        got = "".join(streamed(tokenizer, tokenizer.encode(text, add_special=False)))
        assert got == text, f"of a text of {len(text)} characters {len(got)} come back: does a setting of the tokenizer truncate?"

    def test_pushes_and_finish_are_one_decode(self) -> None:
        """Joined pushes plus `finish` equal one decode of all ids, whatever ids, behind a prompt that ends in text."""
        tokenizer = self.tokenizer()
        tail = self._tail(tokenizer)
        for ids in self._id_lists(tokenizer):
            got, expected = "".join(streamed(tokenizer, ids, tail, skip=False)), decoded(_raw(tokenizer, ids))
            assert got == expected, f"ids {ids} pushed one by one give {got!r}, decoded at once {expected!r}"

    def test_control_tokens_are_left_out(self) -> None:
        """Without special tokens, ids of control tokens are passed over as if they were not there, those that end an answer among them."""
        tokenizer = self.tokenizer()
        tail, vocabulary = self._tail(tokenizer), Vocabulary(tokenizer)
        shown = [] if self.eos_is_text else [id for id in tokenizer.eos_token_ids if "".join(streamed(tokenizer, [id], tail))]
        assert not shown, f"{shown[0]} ends an answer and shows as text. Where that is right: eos_is_text = True"
        for ids in self._id_lists(tokenizer):
            got, left = "".join(streamed(tokenizer, ids, tail)), [id for id in ids if not vocabulary.is_control(id)]
            expected = decoded(_raw(tokenizer, left))
            assert got == expected, f"ids {ids} without control tokens are {left}: pushed one by one they give {got!r}, decoded at once {expected!r}"

    def test_only_the_start_of_a_text_loses_a_space(self) -> None:
        """A space that the tokenizer puts before a text is dropped where text starts, and only there: kept behind a prompt that ends in text."""
        tokenizer = self.tokenizer()
        tail = self._tail(tokenizer)
        spaced = [ids for text in self.texts if (ids := list(tokenizer.encode(f" {text}", add_special=False)))]
        for ids in (*spaced, *self._id_lists(tokenizer)):
            raw = _raw(tokenizer, ids)
            first = next(filter(None, map(tokenizer.token_bytes, ids)), b"")
            starts = {decoded(lead + raw[len(first) :]) for lead in (first, first.removeprefix(b" "), first.replace(b" ", b""))}
            got, behind = "".join(streamed(tokenizer, ids, skip=False)), "".join(streamed(tokenizer, ids, tail, skip=False))
            assert got in starts, f"ids {ids} at the start of a text give {got!r}, expected one of {sorted(starts)}: only the first of them may lose a space"
            assert behind == decoded(raw), f"ids {ids} behind the ids {tail} give {behind!r}, expected {decoded(raw)!r}: prompt_tail says that text goes on"

    def test_no_push_shows_part_of_a_character(self) -> None:
        """Text whose characters are spread over several ids comes in whole characters: no U+FFFD, no surrogate."""
        tokenizer = self.tokenizer()
        tail, vocabulary = self._tail(tokenizer), Vocabulary(tokenizer)
        for text in self._mixed_texts():
            for ids in (list(tokenizer.encode(text, add_special=False)), vocabulary.spelled(text)):
                if "\ufffd" in decoded(_raw(tokenizer, ids)):
                    continue  # it has no ids for some of it
                for id, part in zip(ids, streamed(tokenizer, ids, tail, skip=False), strict=False):
                    whole = "\ufffd" not in part and not any("\ud800" <= character <= "\udfff" for character in part)
                    assert whole, f"the push of {id}, one of {ids}, returns {part!r}: hold the bytes of a character until it is whole"

    def test_at_most_four_bytes_are_held(self) -> None:
        """Whatever follows, what came in more than four bytes ago has come out."""
        tokenizer = self.tokenizer()
        tail = self._tail(tokenizer)
        for ids in self._id_lists(tokenizer):
            raw, out, at = _raw(tokenizer, ids), "", 0
            for id, part in zip(ids, streamed(tokenizer, ids, tail, skip=False), strict=False):
                at, out = at + len(tokenizer.token_bytes(id)), out + part
                soonest = {decoded(raw[:end]) for end in range(max(0, at - 4), at + 1)}
                assert out in soonest, f"of ids {ids}, up to {id}, {out!r} has come out; the bytes so far are {raw[:at]!r}, of which four may be held"

    def test_the_cost_of_a_push_does_not_grow(self) -> None:
        """The thousandth push of an id executes and allocates what an early one did."""
        tokenizer = self.tokenizer()
        ids = [id for text in self.texts for id in tokenizer.encode(text, add_special=False)][:16]
        decoder = tokenizer.start_decoding()
        grown = growth([partial(decoder.push, id) for id in ids], num_rounds=300)
        assert not grown, f"a push costs more the more was pushed before ({grown}): decode what is new, not all of it"

    def test_decoders_are_independent(self) -> None:
        """Samples that are decoded in turn, as in a batch, get the text that each gets alone."""
        tokenizer = self.tokenizer()
        lists = [ids for ids in self._id_lists(tokenizer) if len(ids) > 2][:12]
        alone = [streamed(tokenizer, ids) for ids in lists]
        decoders = [tokenizer.start_decoding() for _ in lists]
        together: list[list[str]] = [[] for _ in lists]
        for at in range(max(map(len, lists), default=0)):
            for ids, decoder, parts in zip(lists, decoders, together, strict=True):
                parts += [decoder.push(ids[at])] if at < len(ids) else []
        for decoder, parts in zip(decoders, together, strict=True):
            parts.append(decoder.finish())
        assert together == alone, "decoders that are used in turn disturb each other: what is held back belongs to one decoder"

    # -- chat ------------------------------------------------------------------------------------------------------

    def test_a_conversation_is_rendered_or_refused(self) -> None:
        """With a chat template a conversation gives text that holds its content, and ids of the vocabulary; without one, InvalidRequest."""
        tokenizer = self.tokenizer()
        for text in ("hello", *filter(str.strip, self.texts)):
            chat: ChatPrompt | InvalidRequest
            try:
                chat = tokenizer.apply_chat_template(self.conversation(text))
            except InvalidRequest as refusal:
                chat = refusal
            if not tokenizer.has_chat_template:
                assert isinstance(chat, InvalidRequest), "has_chat_template is false, so apply_chat_template must raise InvalidRequest"
                continue
            assert isinstance(chat, ChatPrompt), f"has_chat_template is true, so the kit's conversation must be rendered, got {chat!r}"
            assert text.strip() in chat.text, f"the rendered text {chat.text!r} does not hold the message {text!r}"
            assert isinstance(chat.token_ids, tuple), f"ChatPrompt.token_ids is a {type(chat.token_ids).__name__}, expected a tuple"
            assert all(0 <= id < tokenizer.vocab_size for id in chat.token_ids), f"a rendered id is not of the vocabulary: {chat.token_ids}"

    def test_rendered_ids_say_what_the_rendered_text_says(self) -> None:
        """The ids of a rendered conversation decode to its text, with every control token that the template wrote; spaces aside."""
        tokenizer = self.tokenizer()
        for text in self._kept_texts() if tokenizer.has_chat_template else ():
            chat = tokenizer.apply_chat_template(self.conversation(text))
            got = decoded(_raw(tokenizer, chat.token_ids))  # some put a space before every stretch of text
            assert got.replace(" ", "") == chat.text.replace(" ", ""), f"the text is {chat.text!r}, its ids say {got!r}"

    def test_messages_cannot_write_control_tokens(self) -> None:
        """Text inside messages that looks like a control token is encoded as plain text: a user cannot forge a turn."""
        tokenizer = self.tokenizer()
        vocabulary = Vocabulary(tokenizer)
        controls = vocabulary.control_texts() if tokenizer.has_chat_template else []
        for control in controls:
            harmless, forged = (tokenizer.apply_chat_template(self.conversation(f"a{text}b")) for text in ("", control))
            expected, got = (Counter(filter(vocabulary.is_control, chat.token_ids)) for chat in (harmless, forged))
            assert control in forged.text, f"{control!r} stood in a message and is not in the rendered text {forged.text!r}"
            assert got == expected, f"{control!r} inside a message became a control token: ids {dict(got - expected)} more than the template itself writes"

    def test_odd_messages_are_refused_politely(self) -> None:
        """Messages that a template cannot take raise InvalidRequest, never another error; that is the caller's fault, not the engine's."""
        tokenizer = self.tokenizer()
        for messages in ODD_MESSAGES:
            try:
                tokenizer.apply_chat_template(messages)
            except InvalidRequest:
                continue
            except Exception as fault:
                raise AssertionError(f"apply_chat_template({messages!r}) raises {type(fault).__name__}: {fault}; expected InvalidRequest") from fault

    def test_messages_stay_as_they_were(self) -> None:
        """Rendering changes nothing in the messages that it was given: the caller renders them again with the next turn."""
        tokenizer = self.tokenizer()
        messages = [dict(message) for message in self.conversation("hello")]
        before = deepcopy(messages)
        if tokenizer.has_chat_template:
            tokenizer.apply_chat_template(messages)
        assert messages == before, f"apply_chat_template turned the messages {before} into {messages}"

    # -- what the laws are tried on --------------------------------------------------------------------------------

    def _mixed_texts(self) -> Iterator[str]:
        """The texts as they are, then parts of them joined at random."""
        yield from self.texts
        draw = Random(11)
        for _ in range(40):
            parts = (draw.choice(self.texts) for _ in range(draw.randrange(1, 5)))
            yield "".join(part[draw.randrange(len(part) + 1) :] for part in parts)

    def _kept_texts(self) -> list[str]:
        return [text for text in self._mixed_texts() if text] if self.keeps_text else []

    def _tail(self, tokenizer: Tokenizer) -> list[int]:
        """Last ids of a prompt that ends in text."""
        return next(ids for text in self.texts if _raw(tokenizer, ids := list(tokenizer.encode(text, add_special=False))).strip())

    def _id_lists(self, tokenizer: Tokenizer) -> Iterator[list[int]]:
        """Any ids, ids of parts of characters, texts with ids of control tokens between; the short ones first."""
        draw, vocabulary = Random(12), Vocabulary(tokenizer)
        anything = range(tokenizer.vocab_size)
        pools = [anything, vocabulary.parts or anything, [*tokenizer.eos_token_ids] or anything]
        for turn in range(150):
            length = 1 + draw.randrange(1 + turn // 8)
            yield [draw.choice(draw.choices(pools, (3, 6, 1))[0]) for _ in range(length)]
        for text in self._mixed_texts():
            for ids in (list(tokenizer.encode(text)), vocabulary.spelled(text)):
                ids.insert(draw.randrange(len(ids) + 1), draw.choice(pools[2]))
                yield ids


def _raw(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


def _splits(whole: Sequence[int], part: Sequence[int]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every (before, after) with before + part + after = whole."""
    ends = ((at, at + len(part)) for at in range(len(whole) - len(part) + 1))
    return {(tuple(whole[:at]), tuple(whole[end:])) for at, end in ends if list(whole[at:end]) == list(part)}
