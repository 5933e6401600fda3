"""The id of a request: the client's own if it may be one, else a new one. It names the answer and the lines of the log, nothing in the engine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import uuid4

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Neither headers nor lines of a log can be broken with these."""


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """headers: names in small letters. Of several x-request-ids the first counts."""
    given = next((value.decode("latin-1") for name, value in headers if name == b"x-request-id"), "")
    return given if REQUEST_ID.fullmatch(given) else f"req-{uuid4().hex}"
