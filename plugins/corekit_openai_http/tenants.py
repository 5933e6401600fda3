"""Whose a job is, and with whom it shares cached prefixes. Knows names of keys, never keys."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from .keys import Owner
from .requests import Job

MAX_TENANT_CHARS = 256
J = TypeVar("J", bound=Job)


def owned(job: J, fields: Mapping[str, Any], owner: Owner | None, *, salts: bool) -> J:
    """The job as its tenant's: the name of the key, or where there are no keys what the body says as `user`.

    salts: its salt is that of the key, and one of its own is mixed into that: who knows another's salt has not got its prefixes.
    """
    if owner is None:
        user = fields.get("user")
        return replace(job, tenant=user[:MAX_TENANT_CHARS]) if isinstance(user, str) and user else job
    if salts:
        own = job.params.cache_salt
        salt = owner.salt if own is None else hmac.digest(owner.salt.encode(), own.encode(), "sha256").hex()
        job = replace(job, params=replace(job.params, cache_salt=salt))
    return replace(job, tenant=owner.name)
