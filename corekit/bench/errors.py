"""What a benchmark refuses or cannot trust: one error, told to a person."""

from __future__ import annotations

from corekit.api import CorekitError


class BenchError(CorekitError):
    """A benchmark cannot start, or its result would not be what it claims to be."""
