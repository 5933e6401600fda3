"""A hub id, `org/name` or `org/name@revision`: huggingface_hub fetches safetensors and JSON, nothing else. Knows no formats."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import SourceError

PATTERN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{0,126}))?")
WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt")


def is_hub_id(source: str) -> bool:
    return PATTERN.fullmatch(source) is not None


def fetch(source: str, *, cache_dir: Path) -> Path:
    """The folder of a snapshot; without a network, the one that was fetched before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    found = PATTERN.fullmatch(source)
    if found is None:
        raise SourceError(f"{source!r}: not a hub id. One is written org/name or org/name@revision.")
    try:
        return Path(snapshot_download(found[1], revision=found[2], cache_dir=cache_dir / "hub", allow_patterns=list(WANTED)))
    except GatedRepoError as error:
        raise SourceError(f"{source}: the hub wants a login with access to this model. Accept its terms on the hub and log in with `hf auth login`.") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise SourceError(
            f"{source}: the hub knows no such model or revision, or it is private, and there is no folder of that name here. Check the spelling."
        ) from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise SourceError(
            f"{source}: the hub cannot be reached, nothing was fetched before, and there is no folder of that name here ({type(error).__name__}). "
            "Likely no network. Fetch the model's folder where there is one, and name that folder as the source."
        ) from error
