"""How many blocks the swap space has, and whether the host has that much memory. Counts bytes; knows no blocks by number."""

from __future__ import annotations

from pathlib import Path

from .options import CpuSwapOptions

GIB = 1 << 30
DEFAULT_GIB = 4
DEFAULT_SHARE = 0.25
"""Of the host's available memory: what nobody asked for must not stop a start, nor push others out."""
_MEMINFO = Path("/proc/meminfo")


def size_swap(options: CpuSwapOptions, bytes_per_block: int | None, available: int | None, pool: int = 0) -> int:
    """The number of host blocks. Raises ValueError when they do not fit.

    available: bytes of the host that are free, None where nobody knows. pool: bytes of them that the device's blocks will
    take, where device and host are one memory.
    """
    left = None if available is None else max(available - pool, 0)
    if not options.num_host_blocks and options.swap_space_gib == 0:
        return 0
    if bytes_per_block is None or bytes_per_block < 1:
        raise ValueError(
            f"a block takes {bytes_per_block} bytes in this context, so the swap space cannot be counted. The attention backend has to say it first"
        )
    if options.num_host_blocks:
        asked, count = f"num_host_blocks = {options.num_host_blocks}", options.num_host_blocks
    elif options.swap_space_gib is None:
        return int(min(DEFAULT_GIB * GIB, DEFAULT_GIB * GIB if left is None else DEFAULT_SHARE * left)) // bytes_per_block
    else:
        asked, count = f"swap_space_gib = {options.swap_space_gib:g}", int(options.swap_space_gib * GIB) // bytes_per_block
    if not count:
        raise ValueError(f"{asked} does not hold one block of {bytes_per_block:,} bytes. Ask for more, or for 0 to go without swap space")
    needed = count * bytes_per_block
    if left is not None and needed > left:
        beside = f" beside the pool, which takes {pool / GIB:,.2f} GiB of it on a CPU" if pool else ""
        smaller = ", give the pool fewer blocks" if pool else ""
        raise ValueError(
            f"{asked}: {count:,} blocks of {bytes_per_block:,} bytes take {needed / GIB:,.2f} GiB, and {left / GIB:,.2f} GiB of the host's memory are "
            f"available{beside}: room for {left // bytes_per_block:,} blocks. Ask for less in [block_allocator.options.cpu-swap]{smaller}, "
            "free memory, or take cpu-swap out of the stack"
        )
    return count


def available_memory(meminfo: Path = _MEMINFO) -> int | None:
    """Bytes that a program may take without pushing others out; None where the system does not say."""
    try:
        for line in meminfo.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
