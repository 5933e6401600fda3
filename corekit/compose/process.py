"""What holds for a process that is corekit's own, and must never be done to a program that merely imports corekit."""

from __future__ import annotations

import os

ALONE = (("PYDANTIC_DISABLE_PLUGINS", "__all__"), ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"))
"""Both libraries search the entry points of everything that is installed, and end where one file of those cannot be read."""


def own_process() -> None:
    """Keep libraries from loading what is merely installed, unless the user set the variable. Call it before they are imported."""
    for name, value in ALONE:
        os.environ.setdefault(name, value)


def wants_color() -> bool:
    """Whether a terminal may be written to in colour: https://no-color.org, and terminals that know none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
