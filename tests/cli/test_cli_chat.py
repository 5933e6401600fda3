"""chat: at a terminal (a pty) and line by line from a pipe."""

from __future__ import annotations

import logging
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cli_process import MAIN, environment, write
from click.testing import CliRunner, Result

from corekit.api import SamplingParams
from corekit.cli import main
from corekit.cli.conversation import Conversation, Talk
from corekit.compose.assemble import assemble
from corekit.llm import LLM

HEAD = """
[model]
source = "none"
use = "scripted"
max_model_len = 200
[engine]
threads = 1
[block_allocator]
num_blocks = 64
[tokenizer]
use = "bytes"
"""
SPEAKS = HEAD + '[model.options]\ntexts = ["Hello there, this is an answer."]\n'
HASHES = HEAD + "[model.options]\nrandom = true\n"
"""Every token of the conversation changes the answer."""
ENDLESS = HEAD.replace("200", "1024") + '[model.options]\ntexts = ["' + "tick " * 800 + '"]\nstep_seconds = 0.005\n'

Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Iterator[Invoke]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def call(*arguments: str, piped: str | bytes = "") -> Result:
        return CliRunner().invoke(main, ["chat", *arguments], input=piped)

    yield call
    root.handlers[:] = handlers
    root.setLevel(level)


# -- from a pipe


def test_every_line_is_a_question_and_what_was_said_is_remembered(tmp_path: Path, invoke: Invoke) -> None:
    file = write(tmp_path, HASHES)
    done = invoke(file, "--max-tokens", "5", "--system", "be brief", piped="one\n\n  \nGr\u00fc\u00dfe\nthree")
    assert done.exit_code == 0, done.stderr
    params, messages, answers = SamplingParams(temperature=0.0, max_tokens=5), [{"role": "system", "content": "be brief"}], []
    with LLM(config=file) as llm:
        for question in ("one", "Gr\u00fc\u00dfe", "three"):
            messages.append({"role": "user", "content": question})
            answers.append(llm.chat(messages, params)[0].outputs[0].text)
            messages.append({"role": "assistant", "content": answers[-1]})
    assert len(set(answers)) == 3
    assert done.stdout == "".join(f"{answer}\n" for answer in answers)
    assert "(stopped at --max-tokens 5)" in done.stderr


def test_a_seed_repeats_what_is_drawn(tmp_path: Path, invoke: Invoke) -> None:
    file = write(tmp_path, HASHES)
    one, same, other = (invoke(file, "--max-tokens", "8", "--temperature", "1", "--seed", seed, piped="hello\n").stdout for seed in ("1", "1", "2"))
    assert one == same != other


def test_from_a_pipe_the_first_fault_ends_it(tmp_path: Path, invoke: Invoke) -> None:
    done = invoke(write(tmp_path, SPEAKS), piped="one\n" + "x" * 300 + "\nthree\n")
    assert (done.exit_code, done.stdout) == (1, "Hello there, this is an answer.\n")
    assert "this model's maximum context length is 200 tokens" in done.stderr
    assert "Traceback" not in done.stderr
    done = invoke(write(tmp_path, SPEAKS), piped=b"one\n\xff\n")
    assert (done.exit_code, done.stdout) == (2, "Hello there, this is an answer.\n")
    assert "line 2 of standard input is not UTF-8 text" in done.stderr


def test_lines_of_a_pipe_are_never_commands(tmp_path: Path, invoke: Invoke) -> None:
    done = invoke(write(tmp_path, SPEAKS), piped="/exit\n//x\n")
    assert (done.exit_code, done.stdout) == (0, "Hello there, this is an answer.\n" * 2)


def test_what_cannot_be_talked_with_is_refused_before_weights(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corekit.compose.assemble.finish", lambda *_, **__: pytest.fail("weights were loaded"))
    file = write(tmp_path, SPEAKS)
    done = invoke(file, "--max-tokens", "200", piped="one\n")
    assert (done.exit_code, "Ask for at most 199" in done.stderr) == (1, True)
    monkeypatch.setattr("corekit.builtin.bytes_tokenizer.BytesTokenizer.has_chat_template", False)
    done = invoke(file, piped="one\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "has no chat template: it is not a chat model. Its text is continued by `corekit run --raw`." in done.stderr


@pytest.mark.parametrize("arguments", [["--temperature", "3"], ["--max-tokens", "0"], ["--seed", "-1"], ["a", "b"]])
def test_bad_usage(invoke: Invoke, arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


@pytest.mark.slow
def test_an_interrupt_ends_a_talk_from_a_pipe(tmp_path: Path) -> None:
    command = [*MAIN, "chat", write(tmp_path, ENDLESS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write(b"hello\n")
        chat.stdin.flush()
        assert chat.stdout.read(4) == b"tick"
        chat.send_signal(signal.SIGINT)
        assert chat.wait(20) == 130


# -- at a terminal


def test_a_fault_of_one_answer_is_not_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    model = {"use": "scripted", "options": {"texts": ["Hello."], "raise_on": ord("!")}}
    tables = {"model": {"source": "none", **model}, "tokenizer": {"use": "bytes"}, "engine": {"threads": 1}, "block_allocator": {"num_blocks": 8}}
    conversation = Conversation()
    with assemble(tables, frontends=()) as assembly, Talk(assembly.client, SamplingParams(max_tokens=8), conversation) as talk:
        talk._at_terminal = True
        for question in ("one", "two!", "three"):
            talk._turn(question)
    assert conversation.turns == [("one", "Hello."), ("three", "Hello.")]
    assert "scripted to fail" in (said := capsys.readouterr()).err
    assert said.err.endswith("The question is forgotten\n")
    assert said.out == "Hello.\nHello.\n"


class AtTerminal:
    """`corekit chat` whose terminal is the other end of a pty. `shown` is what is on the screen so far, both streams, without control codes."""

    def __init__(self, *arguments: str) -> None:
        self._keys, end = pty.openpty()
        environ = environment(TERM="dumb", LC_ALL="C.UTF-8")
        self.process = subprocess.Popen([*MAIN, "chat", *arguments], stdin=end, stdout=end, stderr=end, env=environ, start_new_session=True, preexec_fn=_own)
        os.close(end)
        self._raw = self.shown = ""
        self._seen = 0

    def wait_for(self, text: str, seconds: float = 60.0) -> str:
        """What came since the last wait, up to text and with it."""
        deadline = time.monotonic() + seconds
        while text not in self.shown[self._seen :]:
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown[self._seen :]!r}"
            if select.select([self._keys], [], [], 0.1)[0]:
                try:
                    self._raw += os.read(self._keys, 65536).decode()
                    self.shown = re.sub(r"\x1b\[\?2004[hl]|\r", "", self._raw)
                except OSError:  # the process ended
                    assert text in self.shown[self._seen :], f"ended without {text!r}: {self.shown[self._seen :]!r}"
        start, self._seen = self._seen, self.shown.index(text, self._seen) + len(text)
        return self.shown[start : self._seen]

    def type(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def interrupt_the_prompt(self, then: Callable[[], bool]) -> None:
        """Between a key and its next look at the keys, Python's line editor hears of a signal with the next key only: give it one that changes nothing.

        A signal between two prompts may be lost there; after a while it is sent again, as a user would.
        """
        for tries in range(60):
            with suppress(OSError):
                self.type(BACKSPACE if tries % 15 else INTERRUPT)
            if then():
                return
        raise AssertionError(f"the interrupt was not heard: {self.shown[self._seen :]!r}")

    def comes(self, text: str) -> Callable[[], bool]:
        """Whether it is on the screen a second later."""

        def look() -> bool:
            try:
                self.wait_for(text, 1.0)
            except AssertionError:
                return False
            return True

        return look

    def ends(self) -> bool:
        try:
            return self.process.wait(1.0) is not None
        except subprocess.TimeoutExpired:
            return False

    def say(self, line: str) -> str:
        """Type a line and wait for the next prompt; what came between."""
        self.type(line + "\n")
        said = self.wait_for("\n> ", 20)
        return said.partition("\n")[2].removesuffix("\n> ")

    def end(self) -> int:
        code = self.process.wait(20)
        os.close(self._keys)
        return code


def _own() -> None:
    """The pty is the controlling terminal of the new session, so that ^C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def at_terminal() -> Iterator[Callable[..., AtTerminal]]:
    started: list[AtTerminal] = []

    def start(*arguments: str) -> AtTerminal:
        started.append(AtTerminal(*arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.end()


INTERRUPT, END, BACKSPACE = "\x03", "\x04", "\x7f"


def test_a_talk_with_commands_an_answer_that_is_stopped_and_an_interrupt_at_the_end(tmp_path: Path, at_terminal: Callable[..., AtTerminal]) -> None:
    chat = at_terminal(write(tmp_path, ENDLESS))
    assert "scripted, context 1,024 tokens. /help lists commands, Ctrl-D ends." in chat.wait_for("> ")
    assert "/forget  forget the oldest question" in chat.say("/help")
    assert chat.say("/forget") == "(there is nothing to forget)"
    assert chat.say("/klear").startswith("there is no command /klear")
    chat.type("hello\n")
    chat.wait_for("tick tick tick")
    chat.type(INTERRUPT)
    assert chat.wait_for("\n> ").endswith("\n(stopped)\n> "), "the talk goes on"
    chat.type("a line that is not sent")
    chat.wait_for("not sent")
    chat.interrupt_the_prompt(chat.comes("\n> "))
    chat.type("again\n")
    chat.wait_for("tick tick")
    chat.type(INTERRUPT)
    chat.wait_for("\n> ")
    assert chat.say("/forget") == "(forgotten: hello; left: 1)", "what was stopped is kept, what was not sent is not"
    assert chat.say("/clear") == "(everything is forgotten)"
    assert chat.say("/forget") == "(there is nothing to forget)"
    chat.interrupt_the_prompt(chat.ends)
    assert chat.end() == 0
    assert "Traceback" not in chat.shown


def test_a_context_that_is_full_is_said_with_the_way_on(tmp_path: Path, at_terminal: Callable[..., AtTerminal]) -> None:
    chat = at_terminal(write(tmp_path, SPEAKS), "--max-tokens", "40")
    chat.wait_for("> ")
    assert chat.say("\x1b[200~two\nlines\x1b[201~").endswith("Hello there, this is an answer.")
    assert chat.say("//second").endswith("Hello there, this is an answer.")
    refused = chat.say("y" * 60)
    assert "corekit: the question was not sent: this model's maximum context length is 200 tokens, but" in refused
    assert "To go on, /forget drops the oldest of 2 questions and answers, /clear all" in refused
    assert chat.say("/forget") == "(forgotten: two\nlines; left: 1)"
    assert chat.say("/forget") == "(forgotten: /second; left: 0)"
    assert chat.say("z" * 60).endswith("Hello there, this is an answer.")
    chat.type(END)
    assert chat.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("at", ["> ", "tick tick"])
def test_a_signal_that_ends_processes_ends_it(tmp_path: Path, at_terminal: Callable[..., AtTerminal], at: str) -> None:
    chat = at_terminal(write(tmp_path, ENDLESS))
    chat.wait_for("> ")
    if at != "> ":
        chat.type("hello\n")
        chat.wait_for(at)
    time.sleep(0.5)  # between its prompt and its first look at the keys Python's line editor hears of a signal with the next key only
    chat.process.send_signal(signal.SIGTERM)
    assert chat.end() == 143
    assert "Traceback" not in chat.shown
