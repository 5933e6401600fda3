"""What a benchmark refuses or cannot trust: errors that are told to a person."""

from __future__ import annotations

from corekit.api import CorekitError, InvalidRequest


class BenchError(CorekitError):
    """A benchmark cannot start, or its result would not be what it claims to be."""


class BenchUsage(BenchError, InvalidRequest):
    """What was asked for cannot be measured: a wrong workload, address or combination of options. Nothing has run."""
