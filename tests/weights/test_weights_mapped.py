"""What of a file is in memory while its tensors are read."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from weights_files import llama_tensors, write_gguf

from corekit.api import SupportsStored, WeightSource
from corekit.weights import open_source
from corekit.weights.errors import SourceError


def resident(path: Path) -> int:
    """Bytes of a file that are in this process's memory, over all maps of it."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    found, inside = 0, False
    for line in lines:
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs hardware: a system that says what is in memory")
def test_pages_of_packed_tensors_leave_memory_with_them(demo_source: WeightSource) -> None:
    path = demo_source._path.resolve()  # type: ignore[attr-defined]
    assert isinstance(demo_source, SupportsStored)
    held: int = 0
    for number, tensor in enumerate(demo_source.stored_tensors()):
        assert tensor.rows.sum(dtype=np.int64) > 0, "reads all of it"
        if number % 16 == 0:  # to ask takes longer than to read
            held = max(held, resident(path) - tensor.rows.nbytes)
    assert held < demo_source.num_bytes / 4, "one tensor at a time, and small ones that are not packed"


def test_more_packed_tensors_than_open_files(tmp_path: Path) -> None:
    """Held all at once, they are views of one map."""
    written = llama_tensors()
    types = {name: Kind.Q8_0 for name, array in written.items() if array.ndim == 2}
    source = open_source(str(write_gguf(tmp_path / "m.gguf", written, types=types)), cache_dir=tmp_path, progress=False)
    wanted = {name: tensor.numpy().copy() for name, tensor in source.tensors()}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 4, hard))
    try:
        assert isinstance(source, SupportsStored)
        held = list(source.stored_tensors())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(held) == len(written)
    for tensor in held:
        floats = gguf.quants.dequantize(tensor.rows, Kind[tensor.type_name]).reshape(tensor.shape)
        np.testing.assert_array_equal(floats, wanted[tensor.name])


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_a_file_that_becomes_shorter_while_it_is_loaded(tmp_path: Path, kind: Kind) -> None:
    """Said instead of ended: what lies beyond the end of a mapped file can only be read at the price of the process."""
    written = llama_tensors()
    types = {name: kind for name, array in written.items() if array.ndim == 2}
    path = write_gguf(tmp_path / "m.gguf", written, types=types)
    source = open_source(str(path), cache_dir=tmp_path, progress=False)
    assert isinstance(source, SupportsStored)
    tensors = source.stored_tensors()
    next(tensors)
    os.truncate(path, path.stat().st_size // 100)
    with pytest.raises(SourceError, match="became shorter"):
        list(tensors)
