"""A conversation at the command line: questions in, answers out as they come. Knows the engine's client; not how it was assembled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing
from types import ModuleType, TracebackType

from corekit.api import EngineClient, InvalidRequest, Prompt, RequestFailed, SamplingParams

from .failing import USAGE, fail, say, standard_input
from .log import tell
from .signals import Stopped

PROMPT = "> "
HELP = """/clear   forget everything that was said; the system message stays
/forget  forget the oldest question with its answer
/exit    end, as Ctrl-D and Ctrl-C at an empty prompt do
//text   send /text itself
Ctrl-C stops an answer; what was said of it is kept."""
TOO_LONG = "context_length_exceeded"


class Conversation:
    """Invariant: questions and answers take turns, as chat templates want it; a question without an answer is not kept."""

    def __init__(self, system: str | None = None) -> None:
        self._system = system
        self.turns: list[tuple[str, str]] = []

    def with_question(self, question: str) -> Prompt:
        messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        for asked, answered in self.turns:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        return Prompt(messages=(*messages, {"role": "user", "content": question}), template={"add_generation_prompt": True})


class Talk:
    """Asks until there are no questions. Interrupted by SIGINT: at a terminal the answer ends and the talk goes on, else it ends.

    Owns an event loop; the engine has its own thread, so nothing waits for this one.
    """

    def __init__(self, client: EngineClient, params: SamplingParams, conversation: Conversation) -> None:
        self._client = client
        self._params = params
        self._conversation = conversation
        self._at_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Talk:
        self._runner.get_loop()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._runner.close()

    def run(self) -> None:
        if self._at_terminal:
            model = self._client.model
            tell(f"{model.name}, context {model.max_model_len:,} tokens. /help lists commands, Ctrl-D ends.")
        for question in self._typed() if self._at_terminal else _piped():
            self._turn(question)

    def _typed(self) -> Iterator[str]:
        """What is not a command. Ends at the end of input, /exit, or an interrupt while nothing is typed."""
        editor = _editor()
        while True:
            try:
                line = input(PROMPT)
            except EOFError:
                say()
                return
            except UnicodeDecodeError:
                tell("that line is not text in the encoding of this terminal; it was not sent")
                continue
            except Stopped:
                raise
            except KeyboardInterrupt:
                say()
                if editor is None or not editor.get_line_buffer():
                    return
                continue
            if line.startswith("/") and not line.startswith("//"):
                if line.strip() in ("/exit", "/quit", "/bye"):
                    return
                self._command(line.strip())
            elif line.strip():
                yield line[1:] if line.startswith("//") else line

    def _command(self, name: str) -> None:
        turns = self._conversation.turns
        if name == "/help":
            say(HELP)
        elif name == "/clear":
            turns.clear()
            tell("(everything is forgotten)")
        elif name == "/forget":
            tell(f"(forgotten: {turns.pop(0)[0]:.60}; left: {len(turns)})" if turns else "(there is nothing to forget)")
        else:
            tell(f"there is no command {name[:60]}. /help lists those there are; a second / in front sends it as a message")

    def _turn(self, question: str) -> None:
        """One question and its answer. Whatever of the answer was said is kept."""
        said: list[str] = []
        note, whole = "", False
        try:
            note = self._runner.run(self._answer(question, said))
            whole = True
        except Stopped:
            raise
        except KeyboardInterrupt:
            if not self._at_terminal:
                raise
            note = "(stopped)" if said else "\n(stopped before the first word; the question is forgotten)"  # below the ^C
        except (InvalidRequest, RequestFailed) as error:
            if not self._at_terminal:
                raise
            note = self._sorry(error, begun=bool(said))
        if said or whole:
            say()
            self._conversation.turns.append((question, "".join(said)))
        if note:
            tell(note)

    async def _answer(self, question: str, said: list[str]) -> str:
        """Prints it as it comes. Returns why it ended early, if it did."""
        async with aclosing(self._client.generate(self._conversation.with_question(question), self._params)) as news:
            async for output in news:
                (part,) = output.outputs
                if part.text:
                    said.append(part.text)
                    say(part.text, nl=False)
        if part.finish_reason != "length":
            return ""
        if self._params.max_tokens is None:
            return "(the context is full: /forget or /clear before the next question)" if self._at_terminal else "(the context is full)"
        return f"(stopped at --max-tokens {self._params.max_tokens})"

    def _sorry(self, error: InvalidRequest | RequestFailed, *, begun: bool) -> str:
        """What went wrong, and how to go on. Nothing is dropped that the user did not drop."""
        if not isinstance(error, InvalidRequest) or error.code != TOO_LONG:
            return f"corekit: {error}. {'What was said is kept' if begun else 'The question is forgotten'}"
        kept = len(self._conversation.turns)
        advice = f"/forget drops the oldest of {kept} questions and answers, /clear all" if kept else "ask something shorter"
        return f"corekit: the question was not sent: {error}. To go on, {advice}"


def _piped() -> Iterator[str]:
    """The lines of standard input that are not empty."""
    number = 0
    try:
        for line in standard_input():
            number += 1
            text = line.decode().rstrip("\r\n")
            if text.strip():
                yield text
    except UnicodeDecodeError as error:
        fail(f"line {number} of standard input is not UTF-8 text ({error.reason}). Convert it.", USAGE)
    except (OSError, ValueError, AttributeError) as error:  # closed, or none at all
        fail(f"standard input cannot be read: {error}. Give questions in a pipe, or use a terminal.", USAGE)


def _editor() -> ModuleType | None:
    """Line editing and history where this Python has them; nothing is written to a file. Several pasted lines are one question."""
    try:
        import readline
    except ImportError:
        return None
    readline.parse_and_bind("set enable-bracketed-paste on")
    readline.parse_and_bind("tab: self-insert")
    return readline
