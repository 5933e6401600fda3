"""How loading shows that it goes on: a bar on a terminal, lines in a log, and nothing for what is quick or not wanted."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from corekit.weights import open_source
from corekit.weights.progress import progress_bar, say
from corekit.weights.spoken import EVERY_SECONDS, SpokenBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """What tqdm reads, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("tqdm.std.time", lambda: self.now)


def test_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("loading it", 4_000_000, shown=True) as bar:
        assert isinstance(bar, SpokenBar)
        for _ in range(40):  # one second each
            clock.now += 1
            bar.update(100_000)
    assert len(caplog.messages) == 4
    assert caplog.messages[0] == "loading it: 5 %, 200k of 4.00M, 00:02"
    assert caplog.messages[-1] == "loading it: 80 %, 3.20M of 4.00M, 00:32"
    assert sys.stderr.getvalue() == ""
    assert {record.name for record in caplog.records} == {"corekit.weights.progress"}


def test_what_is_quick_or_unwanted_or_does_not_move_says_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for shown, seconds, count in ((True, 0.1, 10), (False, 20, 10), (True, 20, 0)):
        with progress_bar("loading it", 100, shown=shown) as bar:
            for _ in range(10):
                clock.now += seconds
                bar.update(count)
                bar.refresh()
    assert (caplog.messages, sys.stderr.getvalue()) == ([], "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_bar("loading it", 100, shown=True) as bar:
        for _ in range(10):
            clock.now += 1
            bar.update(10)
        say("above the bar")
    assert "loading it:" in sys.stderr.getvalue()
    assert "corekit: above the bar\n" in sys.stderr.getvalue()
    assert caplog.messages == []


def test_who_has_no_log_finds_it_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)
    say("fetching it")
    assert sys.stderr.getvalue() == "corekit: fetching it\n"
    monkeypatch.setattr(sys, "stderr", None)
    say("nobody hears it")


def test_safetensors_are_counted_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    save_file({f"t{i}": torch.zeros(1000) for i in range(8)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    for _ in open_source(str(tmp_path), cache_dir=tmp_path).tensors():
        clock.now += EVERY_SECONDS
    assert [message.split(": ")[1].split(",")[0] for message in caplog.messages] == [f"{100 * i / 8:.0f} %" for i in range(1, 9)]
    assert all("of 32.0k" in message for message in caplog.messages)


def test_bars_of_the_hub_take_what_it_gives_them(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(monkeypatch)
    bar = SpokenBar(desc="Downloading bytes", total=0, initial=0, unit="B", unit_scale=True, bar_format="{l_bar}{bar}")
    bar.total = 1000
    for _ in range(3):
        clock.now += EVERY_SECONDS
        bar.set_postfix_str("1 MB/s", refresh=False)
        bar.update(100)
        bar.refresh()
    bar.close()
    assert caplog.messages == [f"Downloading bytes: {i}0 %, {i}00 of 1.00k, 00:{i}0" for i in (1, 2, 3)]
