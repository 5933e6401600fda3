"""Loads PyTorch's native code while other modules are imported. For processes that are corekit's own; knows nothing of what it does."""

from __future__ import annotations

import ctypes
import os
import queue  # noqa: F401 - who imports native code waits for the linker: what comes next needs this much of it
import sys
import threading
from importlib.util import find_spec
from pathlib import Path


def load_ahead() -> None:
    """Begin it, in a thread: it is a fifth of PyTorch's import, and no work for Python.

    Python code runs beside it, but who imports another native module waits: call it when most of them are there. Where it cannot be
    loaded nothing happens, since what is wrong is for the import to say. The process ends no sooner than it is done.
    """
    found = None if sys.platform != "linux" else find_spec("torch")
    if found is not None and found.origin is not None:
        threading.Thread(target=_load, args=(Path(found.origin).parent / "lib",), name="corekit-load-ahead").start()


def _load(folder: Path) -> None:
    """What the import loads first, in its order and manner."""
    dlopen = ctypes.CDLL(None).dlopen  # called as a foreign function it lets other threads run, which ctypes.CDLL need not
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    for name, mode in (("libtorch_global_deps.so", os.RTLD_GLOBAL), ("libtorch_cpu.so", os.RTLD_LOCAL)):
        if not dlopen(os.fsencode(folder / name), os.RTLD_LAZY | mode):
            return
