"""Where weights come from: folders, GGUF files, packages, hubs. Knows file formats; no model maths."""

from .errors import SourceError
from .source import DEMO_SOURCE, open_source

__all__ = ["DEMO_SOURCE", "SourceError", "open_source"]
