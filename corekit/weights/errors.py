"""The one error of this room: a source of weights that cannot be used, and what to do about it."""

from __future__ import annotations

from corekit.api import CorekitError


class SourceError(CorekitError):
    """A source cannot be opened or read. The message says what was asked, what is known, the likely cause and the next step."""
