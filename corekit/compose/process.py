"""What holds for a process that is corekit's own, and must never be done to a program that merely imports corekit."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ALONE = (("PYDANTIC_DISABLE_PLUGINS", "__all__"), ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"))
"""Both libraries search the entry points of everything that is installed, and end where one file of those cannot be read."""


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
    """Memory that is free in this process goes back to the system, where the C library can do that. A tokenizer in the making needs twice what stays."""
    if sys.platform == "linux":
        import ctypes

        with suppress(AttributeError):  # glibc alone has it
            ctypes.CDLL(None).malloc_trim(0)


def wants_color() -> bool:
    """Whether a terminal may be written to in colour: https://no-color.org, and terminals that know none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
