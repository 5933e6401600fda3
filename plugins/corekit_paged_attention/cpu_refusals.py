"""Why this provider cannot run here."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import BuildContext


def refusals(context: BuildContext) -> Sequence[str]:
    return ("it is not written yet",)
