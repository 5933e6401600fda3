"""What holds for a process that is corekit's own, and must never be done to a program that merely imports corekit."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ALONE = (("PYDANTIC_DISABLE_PLUGINS", "__all__"), ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"))
"""Both libraries search the entry points of everything that is installed, and end where one file of those cannot be read."""

LARGE_CODE = 4 << 20
"""Bytes of a library's code from where it is worth a call."""


def own_process() -> None:
    """Keep libraries from loading what is merely installed, unless the user set the variable. Call it before they are imported."""
    for name, value in ALONE:
        os.environ.setdefault(name, value)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Around imports and composition, of which nearly all stays: to look for garbage among it takes a fifth of their time.

    Nor is it looked at afterwards. What is made here and thrown away in cycles therefore stays too, so load no weights here.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        give_back()
        if was_on:
            gc.enable()


def give_back() -> None:
    """Memory that is not needed now goes back to the system: what is free, where the C library can do that, and code that ran once.

    A tokenizer in the making needs twice what stays. A library that registers thousands of operators when it is loaded touches nearly
    all of its code for it; what of it runs again is mapped again, from the page cache.
    """
    if sys.platform == "linux":
        import ctypes
        import mmap

        system = ctypes.CDLL(None)
        with suppress(AttributeError):  # glibc alone has it
            system.malloc_trim(0)
        for start, end in large_code("/proc/self/smaps"):
            system.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def large_code(smaps: str) -> Iterator[tuple[int, int]]:
    """Where large libraries have code of which no page was ever written to, be it in memory now or in swap: then the file has all of it."""
    with suppress(OSError), open(smaps, encoding="utf-8", errors="replace") as mappings:
        start = end = 0
        for line in mappings:
            words = line.split(maxsplit=2)
            if not words[0].endswith(":"):
                start, end = (int(address, 16) for address in words[0].split("-"))
                is_code = words[1] == "r-xp" and end - start >= LARGE_CODE
                as_in_file = False
            elif words[0] == "Anonymous:":
                as_in_file = words[1] == "0"
            elif is_code and as_in_file and words[:2] == ["Swap:", "0"]:
                yield start, end


def wants_color() -> bool:
    """Whether a terminal may be written to in colour: https://no-color.org, and terminals that know none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
