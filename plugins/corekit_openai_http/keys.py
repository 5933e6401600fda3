"""Whose key a request carries. Compares digests of all keys in the same time whatever was sent; knows no routes, and shows no key."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Names of keys stand in the log and reach the scheduler: neither can be broken with these."""

ADMIN = "admin"
"""The name of whoever holds `admin_key`."""

MAX_KEYS = 1000
"""All are compared for each request, in a millisecond."""

_SCHEME = b"bearer"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whoever holds a key."""

    name: str
    salt: str
    """For cached prefixes: nobody without the key can guess it, and it is the same in every process that has the key."""


class KeyRing:
    """Named keys. Of a key only its digest is kept, and a salt that does not give it away."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._owners = tuple(
            (_digest(key.encode()), Owner(name, hmac.digest(key.encode(), b"corekit cache salt", "sha256").hex())) for name, key in keys.items()
        )

    def __bool__(self) -> bool:
        return bool(self._owners)

    def owner(self, authorization: bytes) -> Owner | None:
        """Who sent this header `Authorization: Bearer KEY`; None for any other key or scheme, and for none."""
        scheme, _, key = authorization.partition(b" ")
        digest = _digest(key.strip())
        found = None
        for accepted, owner in self._owners:  # all of them, whatever the first said: the time tells nothing
            found = owner if hmac.compare_digest(digest, accepted) else found
        return found if scheme.lower() == _SCHEME else None


def all_keys(named: Mapping[str, str], unnamed: Sequence[str]) -> dict[str, str]:
    """By name; those without one are key-1, key-2 and so on."""
    return {**named, **{f"key-{number}": key for number, key in enumerate(unnamed, 1)}}


def key_problems(named: Mapping[str, str], unnamed: Sequence[str], admin_key: str) -> list[str]:
    """What is wrong with keys, in sentences that show none of them."""
    found = []
    if any(not _is_key(key) for key in unnamed):
        found.append(f"api_keys {_RULE}")
    if wrong := [name for name, key in named.items() if not _is_key(key)]:
        found.append(f"the key of {', '.join(map(repr, wrong))} in keys {_RULE}")
    if admin_key and not _is_key(admin_key):
        found.append(f"admin_key {_RULE}")
    if wrong := [name[:80] for name in named if not KEY_NAME.fullmatch(name)]:
        found.append(f"names of keys must be 1 to 64 letters, digits, dots, underscores or dashes, got {', '.join(map(repr, wrong))}")
    if wrong := sorted(named.keys() & all_keys({}, unnamed).keys()):
        found.append(f"{', '.join(map(repr, wrong))} in keys is also the name of a key in api_keys: give it another name, or all keys one in keys")
    if admin_key and ADMIN in named:
        found.append(f"keys must not hold one of the name {ADMIN!r} beside admin_key, whose requests the log calls so")
    keys = all_keys(named, unnamed)
    if len(keys) > MAX_KEYS:
        found.append(f"keys and api_keys must be at most {MAX_KEYS}, got {len(keys)}")
    if len(set(keys.values())) < len(keys):
        found.append("two names have the same key in keys and api_keys, so nobody could tell who sends it: give each a key of its own")
    if admin_key and admin_key in keys.values():
        found.append("admin_key must not be one of keys or api_keys: the right to administrate would come with an ordinary key")
    return found


_RULE = "must be printable ASCII without spaces around them, and not empty (the value itself is not shown)"


def _is_key(key: str) -> bool:
    return bool(key) and key == key.strip() and key.isprintable() and key.isascii()


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
