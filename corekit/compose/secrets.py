"""Which options must never be shown: those that a provider declares with `field(metadata={"secret": True})`.

Knows where options stand in a configuration, and how one may stand in a file; nothing of what they are for.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable

from .catalog import Catalog
from .config import Config
from .problems import Path

MARKS = ("env:", "file:")
"""Begin a text that only says where a secret is."""

MAX_FILE_BYTES = 64 * 1024


def read_secret_file(path: str) -> str:
    """The text of a file that holds a secret and nothing else, without white space around it. Raises ValueError that says why not."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a pipe without a writer would wait for ever
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_FILE_BYTES + 1) if stat.S_ISREG(mode) else None
    except (OSError, ValueError) as error:
        raise ValueError(f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if content is None:
        raise ValueError("this is not a file")
    if mode & stat.S_IWOTH:
        raise ValueError("everybody may write this file, and so choose the secret. chmod o-w it")
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"the file is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None
    if not text:
        raise ValueError("the file is empty")
    return text


def secret_names(options: type | None) -> frozenset[str]:
    """The secret fields of an options dataclass."""
    if options is None or not dataclasses.is_dataclass(options):
        return frozenset()
    return frozenset(field.name for field in dataclasses.fields(options) if field.metadata.get("secret"))


def secrets_of(config: Config, catalog: Catalog) -> Callable[[Path], bool]:
    """Whether the value at a path is secret. Of a part that nobody knows, every option may be."""

    def is_secret(path: Path) -> bool:
        if "options" not in path:
            return False
        at = path.index("options")
        slot, below = str(path[0]), path[at + 1 :]
        if slot == "block_allocator":
            name, below = str(below[0]), below[1:]
        else:
            table = getattr(config, slot)
            name = (table[path[1]] if at == 2 else table).use
        candidates = [c for c in catalog.candidates.get(slot, ()) if name in ("auto", c.name, c.full_name)]
        return bool(below) and (not candidates or any(below[0] in secret_names(c.provider.options) for c in candidates))

    return is_secret
