"""A hub id, `org/name` or `org/name@revision`: huggingface_hub fetches safetensors and JSON, nothing else. Knows no formats."""

from __future__ import annotations

import re
from pathlib import Path

from .cache import cache_folder
from .errors import SourceError
from .progress import on_terminal, say

PATTERN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{0,126}))?")
WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt")


def is_hub_id(source: str) -> bool:
    return PATTERN.fullmatch(source) is not None


def fetch(source: str, *, cache_dir: Path, progress: bool) -> Path:
    """The folder of a snapshot; without a network, the one that was fetched before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    from .spoken import SpokenBar

    found = PATTERN.fullmatch(source)
    if found is None or ".." in source:
        raise SourceError(f"{source!r}: no such folder, and not a hub id. One is written org/name or org/name@revision.")
    if progress:
        say(f"there is no folder {source} here; asking the hub for a model of that name")
    try:
        with cache_folder(cache_dir, "hub") as folder:
            bars = SpokenBar if progress and not on_terminal() else None  # else the hub's own, which are for terminals alone
            return Path(snapshot_download(found[1], revision=found[2], cache_dir=folder, allow_patterns=list(WANTED), tqdm_class=bars))
    except HFValidationError as error:
        raise SourceError(
            f"{source}: no such folder; looked for a hub model of that name, and no id has that form: {error}. Check the spelling of the path or id."
        ) from error
    except GatedRepoError as error:
        raise SourceError(f"{source}: the hub wants a login with access to this model. Accept its terms on the hub and log in with `hf auth login`.") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise SourceError(
            f"{source}: no such folder; looked for a hub model of that name, and the hub knows no such model or revision, or it is private. Check the spelling."
        ) from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise SourceError(
            f"{source}: no such folder; looked for a hub model of that name, but the hub cannot be reached and nothing was fetched before "
            f"({type(error).__name__}). "
            "Likely no network. Fetch the model's folder where there is one, and name that folder as the source."
        ) from error
