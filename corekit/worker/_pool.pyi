"""Binds csrc/pool."""

class Pool:
    """Threads that start at once and end with the object."""

    def __init__(self, num_threads: int, spin: int) -> None:
        """num_threads: 1 to 1024, the caller included. spin: pauses before a thread sleeps."""

    @property
    def address(self) -> int: ...
    @property
    def num_threads(self) -> int: ...

def has_bfloat16() -> bool: ...
def instruction_sets() -> list[str]:
    """Those that this machine runs, of "portable", "avx2", "avx512", "avx512-bf16" and "amx"; the best last."""
