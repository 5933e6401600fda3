"""The fixture of this room's tests."""

from compose_installs import install

__all__ = ["install"]
