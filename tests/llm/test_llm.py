"""LLM on models without weights: order, options, flow control, interruption, errors and the end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from corekit.api import EngineDead, InvalidRequest, Prompt, RequestFailed, SamplingParams
from corekit.compose.config import Config, load
from corekit.compose.errors import ConfigError
from corekit.llm import LLM

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def scripted(*, options=None, **given) -> LLM:
    model = {"use": "scripted", "options": {"texts": ["alpha", "beta", "gamma"], **(options or {})}}
    given = {"max_model_len": 256, "max_num_seqs": 4, "num_blocks": 256, "block_size": 4, "stack": ["free-list"], "threads": 1, **given}
    return LLM("none", config={"model": model, "tokenizer": {"use": "bytes"}}, **given)


@pytest.fixture(scope="module")
def llm():
    with scripted() as made:
        yield made


def texts(outputs) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def threads_of_corekit() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("corekit")]


def settled(llm) -> bool:
    deadline = time.monotonic() + 5
    while not llm.assembly.engine.idle and time.monotonic() < deadline:
        time.sleep(0.002)
    stats = llm.assembly.client.stats()
    return (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_blocks)


# The first byte of a prompt chooses the script: chr(99) alpha, chr(100) beta, chr(101) gamma.


def test_answers_come_whole_and_in_order(llm):
    outputs = llm.generate(["c", "d", "e"] * 5, GREEDY)
    assert texts(outputs) == ["alpha", "beta", "gamma"] * 5
    one = outputs[0]
    assert (one.prompt, one.num_prompt_tokens, one.finished, one.outputs[0].finish_reason) == ("c", 1, True, "stop")
    assert one.outputs[0].token_ids == (*b"alpha", 256)


def test_every_form_of_prompt(llm):
    assert texts(llm.generate("c", GREEDY)) == ["alpha"]
    assert texts(llm.generate(Prompt(text="d"), GREEDY)) == ["beta"]
    mixed = llm.generate(["c", Prompt(text="d"), Prompt(token_ids=(101,)), [101]], GREEDY)
    assert texts(mixed) == ["alpha", "beta", "gamma", "gamma"]
    assert [output.prompt for output in mixed] == ["c", "d", None, None]
    for ids in ([101], (101, 65)):
        (one,) = llm.generate(ids, GREEDY)
        assert (one.prompt, one.num_prompt_tokens, one.outputs[0].text) == (None, len(ids), "gamma")
    assert llm.generate([], GREEDY) == llm.generate([], []) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", {"max_tokens": 3}), r"params must be SamplingParams, as in SamplingParams\(max_tokens=3\), or a list of those, got dict"),
        ((["a"], [{"max_tokens": 3}]), r"params\[0\] must be SamplingParams, got dict"),
        ((["a"], 3), "params must be SamplingParams, .* got int"),
        ((5,), "prompts must be text, a list of token ids, a Prompt, or a list of those, got int"),
        ((None,), "prompts must be text, .* got NoneType"),
        (({"text": "a"},), "prompts must be text, .* got dict"),
    ],
)
def test_what_is_no_prompt_and_no_params(llm, arguments, said):
    with pytest.raises(InvalidRequest, match=f"^{said}$"):
        llm.generate(*arguments)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "messages must be a list of messages, or a list of such lists, got str"),
        (["hello"], r"messages\[0\] must be a list of messages, got str"),
        ({"role": "user", "content": "x"}, "messages must be .* got dict"),
        (5, "messages must be .* got int"),
        ([{"rol": "user"}], r"messages\[0\] must be a mapping with a role that is text, as in .* got {'rol': 'user'}"),
        ([[{"role": "user", "content": "x"}, 5]], r"messages\[0\]\[1\] must be a mapping .* got 5"),
    ],
)
def test_what_is_no_conversation(llm, messages, said):
    with pytest.raises(InvalidRequest, match=f"^{said}$"):
        llm.chat(messages, GREEDY)


def test_it_says_what_it_is():
    with scripted() as made:
        assert repr(made) == "<LLM 'scripted', context 256 tokens>"
    assert repr(made) == "<LLM 'scripted', context 256 tokens, closed>"


def test_a_misspelt_key_is_found_in_its_table():
    with pytest.raises(ConfigError, match=r"\[max_num_seq\]: unknown key. Did you mean 'max_num_seqs', which is \[scheduler\] max_num_seqs\?"):
        LLM(max_num_seq=4)


def test_params_for_each_prompt(llm):
    outputs = llm.generate(["c", "d"], [GREEDY, SamplingParams(temperature=0.0, stop="t", n=2, logprobs=1)])
    assert [[o.text for o in output.outputs] for output in outputs] == [["alpha"], ["be", "be"]]
    assert [o.stop_reason for o in outputs[1].outputs] == ["t", "t"]
    assert [len(o.logprobs) for o in outputs[1].outputs] == [3, 3]
    with pytest.raises(InvalidRequest, match="each of the 2 prompts, got 1"):
        llm.generate(["c", "d"], [GREEDY])
    with pytest.raises(InvalidRequest, match="each of the 1 prompts, got 0"):
        llm.generate("c", [])
    with pytest.raises(InvalidRequest, match="each of the 1 prompts, got 0"):
        llm.chat([{"role": "c", "content": "hi"}], [])


def test_chat_takes_one_conversation_or_many(llm):
    hello = [{"role": "c", "content": "hi"}]
    (one,) = llm.chat(hello)
    assert (one.prompt, one.outputs[0].text, one.outputs[0].finish_reason) == ("c: hi\nassistant:", "alpha", "stop")
    many = llm.chat([hello, [{"role": "d", "content": "hi"}, {"role": "e", "content": "ho"}]], GREEDY)
    assert texts(many) == ["alpha", "beta"]
    with pytest.raises(InvalidRequest, match=r"prompts\[0\].*empty"):
        llm.chat([])


def test_an_error_names_its_prompt_and_ends_the_others(llm):
    for wrong, index in ((["c", "", "d"], 1), ([[65], [300]], 1), ([[]], 0), (["c", "x" * 300], 1)):
        with pytest.raises(InvalidRequest, match=rf"prompts\[{index}\]: ") as caught:
            llm.generate(wrong, SamplingParams(max_tokens=200, ignore_eos=True))
        assert caught.value.field == "prompt"
        assert settled(llm)
    for wrong, said in ((5, "must be text.*int"), ([65, "a"], r"\[1\] must be a token id, got 'a'"), ([65, None], r"\[1\] must be a token id, got None")):
        with pytest.raises(InvalidRequest, match=r"^prompts\[1\] ?" + said):
            llm.generate(["c", wrong])
    assert texts(llm.generate("c", GREEDY)) == ["alpha"]


def test_a_fault_of_one_request_is_raised_and_the_next_call_works():
    with scripted(options={"raise_on": ord("!")}) as llm:
        with pytest.raises(RequestFailed, match=r"prompts\[2\]: .*scripted to fail"):
            llm.generate(["c", "d", "!", "e"], SamplingParams(max_tokens=100, ignore_eos=True))
        assert settled(llm)
        assert texts(llm.generate(["c", "d"], GREEDY)) == ["alpha", "beta"]


def test_far_more_prompts_than_the_queue_holds():
    with scripted(max_num_seqs=8, max_queued_requests=3) as llm:
        seen = 0
        stop = threading.Event()

        def watch():
            nonlocal seen
            while not stop.is_set():
                seen = max(seen, llm.assembly.client.stats().num_waiting)
                time.sleep(0.0005)

        watcher = threading.Thread(target=watch)
        watcher.start()
        outputs = llm.generate(["c", "d", "e"] * 60, SamplingParams(temperature=0.0, max_tokens=3))
        stop.set()
        watcher.join()
        assert texts(outputs) == ["alp", "bet", "gam"] * 60
        assert 0 < seen <= 3


def test_a_queue_limited_by_tokens_takes_long_prompts_too():
    with scripted(max_queued_tokens=20) as llm:
        assert texts(llm.generate(["c" * 90, "d" * 200] * 10, GREEDY)) == ["alpha", "beta"] * 10


def test_what_is_alive_does_not_grow_with_the_list():
    """The rest of a long list is not even encoded before its turn, so memory beyond prompts and answers stays flat."""
    with scripted() as llm:
        client, alive = llm.assembly.client, []
        add = client._streams.add
        client._streams.add = lambda stream: (alive.append(len(client._streams)), add(stream))
        llm.generate(["c"] * 200, SamplingParams(temperature=0.0, max_tokens=2))
        assert len(alive) == 200
        assert max(alive) < 4 + 32


def test_several_threads_share_one(llm):
    results: dict[str, list[str]] = {}

    def work(name):
        results[name] = texts(llm.generate([name] * 20, GREEDY))

    threads = [threading.Thread(target=work, args=(name,)) for name in "cde"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"c": ["alpha"] * 20, "d": ["beta"] * 20, "e": ["gamma"] * 20}


@pytest.fixture
def interruptible():
    """A job in a shell's background ignores interrupts, and so do its tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_what_runs_and_nothing_else():
    with scripted(options={"step_seconds": 0.005}) as llm:
        timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["c"] * 50, SamplingParams(max_tokens=200, ignore_eos=True))
        timer.join()
        assert len(llm.assembly.client._streams) == 0
        assert settled(llm)
        assert texts(llm.generate("c", GREEDY)) == ["alpha"]


# -- progress


@pytest.mark.slow
def test_a_bar_appears_only_when_it_takes_long_and_is_wanted(capsys):
    with scripted(options={"step_seconds": 0.02}, max_num_seqs=1) as llm:
        slow = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        llm.generate(["c"], GREEDY)
        llm.generate(["c"] * 4, slow, progress=False)
        assert capsys.readouterr().err == ""
        llm.generate(["c"] * 4, slow)
        captured = capsys.readouterr()
    assert "4/4" in captured.err
    assert captured.out == ""


# -- configuration


def test_names_of_options_from_every_table():
    with scripted(executor="delayed", seed=7, max_num_batched_tokens=64, dtype="float64", scheduler={"watermark": 0}, **{"engine.threads": 2}) as llm:
        config = llm.assembly.config
        assert (config.executor.use, config.engine.seed, config.scheduler.max_num_batched_tokens) == ("delayed", 7, 64)
        assert (config.scheduler.watermark, config.scheduler.max_num_seqs, config.engine.threads) == (0, 4, 2)
        assert texts(llm.generate("c", GREEDY)) == ["alpha"]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [({"max_model_length": 5}, "max_model_len"), ({"scheduler": {"max_num_seq": 5}}, "max_num_seqs"), ({"max_num_seqs": 0}, "max_num_seqs")],
)
def test_wrong_options_are_refused_with_the_nearest_name(wrong, near):
    before = threads_of_corekit()
    with pytest.raises(ConfigError, match=near):
        LLM("none", **wrong)
    assert threads_of_corekit() == before


def test_a_file_beneath_the_options(tmp_path: Path):
    file = tmp_path / "engine.toml"
    file.write_text(
        '[model]\nsource = "none"\nuse = "scripted"\nmax_model_len = 128\n[tokenizer]\nuse = "bytes"\n'
        '[scheduler]\nmax_num_seqs = 3\n[block_allocator]\nnum_blocks = 40\nstack = ["free-list"]\n'
    )
    with LLM(config=file, max_num_batched_tokens=32) as llm:
        config = llm.assembly.config
        assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens, config.model.max_model_len) == (3, 32, 128)
    checked = load(file)
    assert isinstance(checked, Config)
    with LLM(config=checked, max_num_seqs=2) as llm:
        assert (llm.assembly.config.scheduler.max_num_seqs, llm.assembly.config.block_allocator.num_blocks) == (2, 40)


def test_the_callers_tables_are_not_changed():
    config = {"model": {"use": "scripted"}, "tokenizer": {"use": "bytes"}, "scheduler": {"watermark": 0.0}}
    LLM("none", config=config, max_num_seqs=2, num_blocks=64, max_model_len=64, stack=["free-list"]).close()
    assert config == {"model": {"use": "scripted"}, "tokenizer": {"use": "bytes"}, "scheduler": {"watermark": 0.0}}


# -- the end


def test_close_is_final_repeatable_and_leaves_no_thread():
    before = threads_of_corekit()
    llm = scripted()
    assert len(threads_of_corekit()) == len(before) + 2
    llm.close()
    llm.close()
    assert threads_of_corekit() == before
    with pytest.raises(EngineDead, match="closed"):
        llm.generate("c")


def test_close_while_another_thread_waits():
    llm = scripted(options={"step_seconds": 0.005})
    got: list[object] = []

    def work():
        try:
            got.append(llm.generate(["c"] * 50, SamplingParams(max_tokens=200, ignore_eos=True)))
        except EngineDead as error:
            got.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not llm.assembly.client.stats().num_running:
        time.sleep(0.001)
    llm.close()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(got[0], EngineDead)


def test_nobody_holds_it_any_more():
    before = threads_of_corekit()
    llm = scripted()
    llm.generate("c", GREEDY)
    del llm
    gc.collect()
    assert threads_of_corekit() == before


def test_the_interpreter_ends_cleanly_without_a_close():
    code = (
        "from corekit import LLM, SamplingParams\n"
        "llm = LLM('none', model={'use': 'scripted'}, tokenizer='bytes', max_model_len=64, num_blocks=64, stack=['free-list'])\n"
        "print(llm.generate('c', SamplingParams(temperature=0, max_tokens=4))[0].outputs[0].text)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "This\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs hardware: a system that forks")
def test_a_forked_child_is_told_instead_of_waiting_for_ever() -> None:
    program = """
import os, sys
from corekit import LLM, SamplingParams
from corekit.api import EngineDead
llm = LLM("none", config={"model": {"use": "scripted"}, "tokenizer": {"use": "bytes"}}, num_blocks=64)
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1], llm.generate("a", SamplingParams(max_tokens=2))[0].outputs[0].finish_reason)
    llm.close()
else:
    try:
        llm.generate("a")
    except EngineDead as error:
        os._exit(0 if "forked" in str(error) else 3)
    os._exit(4)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["0", "length"], done.stderr


def test_a_process_without_stderr_can_use_it() -> None:
    program = """
import sys
sys.stderr = None
from corekit import LLM, SamplingParams
with LLM("none", config={"model": {"use": "scripted"}, "tokenizer": {"use": "bytes"}}, num_blocks=64) as llm:
    print(len(llm.generate(["a", "b"], SamplingParams(max_tokens=2))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["2"], done.stderr
