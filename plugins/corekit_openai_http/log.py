"""The logger of this frontend."""

from __future__ import annotations

import logging

LOG = logging.getLogger("corekit.openai_http")
