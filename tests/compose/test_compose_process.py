"""What a process of corekit's own does to its collector and its memory while it starts; asked in processes of their own, since it lasts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from corekit.compose import process


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("was_on", [True, False])
def test_nothing_is_collected_inside_and_all_is_as_before_after_a_fault(was_on: bool) -> None:
    code = f"""
import gc
from corekit.compose.process import nothing_collected
(gc.enable if {was_on} else gc.disable)()
try:
    with nothing_collected():
        assert not gc.isenabled()
        made = [[] for _ in range(5000)]
        raise KeyError
except KeyError:
    print(gc.isenabled(), gc.get_freeze_count() > 5000, gc.get_count()[0] < 5000)
"""
    assert run(code).split() == [str(was_on), "True", "True"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs hardware: a system that says what is in memory")
def test_what_was_freed_goes_back() -> None:
    code = """
import ctypes, re
from pathlib import Path
from corekit.compose.process import give_back
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
made = [bytes(3000) for _ in range(20_000)]
last = bytes(3000)  # above the others, which alone would go back by themselves
del made
before = resident()
give_back()
print(before - resident(), hasattr(ctypes.CDLL(None), "malloc_trim"))
"""
    kib, can = run(code).split()
    assert can == "False" or int(kib) > 30_000


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs hardware: a system that says what is in memory")
def test_code_that_ran_once_leaves_memory_and_runs_again() -> None:
    code = """
import re
from pathlib import Path
from corekit.compose import process
def mapped():
    return int(re.search(r"RssFile:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
import tokenizers
process.LARGE_CODE = 1 << 20
before = mapped()
process.give_back()
print(before - mapped(), tokenizers.Tokenizer(tokenizers.models.BPE()).encode("a").ids)
"""
    kib, ids = run(code).split()
    assert int(kib) > 1000
    assert ids == "[]"


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs hardware: a system that says what is in memory")
def test_code_that_was_written_to_stays() -> None:
    code = """
import ctypes, mmap, tempfile
from corekit.compose import process
process.LARGE_CODE = 1 << 20
with tempfile.TemporaryFile() as file:
    file.truncate(1 << 20)
    memory = mmap.mmap(file.fileno(), 1 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
memory[5000] = 7
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(1 << 20), mmap.PROT_READ | mmap.PROT_EXEC) == 0
process.give_back()
print(memory[5000])
"""
    assert run(code).split() == ["7"]


@pytest.mark.parametrize(("written", "swapped", "given"), [(0, 0, 1), (4, 0, 0), (0, 4, 0)])
def test_code_that_was_written_to_stays_even_in_swap(tmp_path: Path, written: int, swapped: int, given: int) -> None:
    smaps = tmp_path / "smaps"
    kind = "r-xp 00001000 fe:00 26723    /lib/a large one.so"
    smaps.write_text(f"10000000-10800000 {kind}\nRss:  8 kB\nAnonymous:  {written} kB\nSwap:  {swapped} kB\nVmFlags: rd ex mr\n")
    assert list(process.large_code(str(smaps))) == [(0x10000000, 0x10800000)] * given
