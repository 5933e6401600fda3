"""What the endpoints of one server have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from corekit.api import EngineClient

from .admission import Admission
from .drain import Drain
from .live import LiveRequests
from .metrics import Meters
from .options import HttpOptions


@dataclass(frozen=True, slots=True)
class Shared:
    """Made once a server, before its first request."""

    client: EngineClient
    options: HttpOptions
    meters: Meters
    drain: Drain
    live: LiveRequests = field(default_factory=LiveRequests)
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "admission", Admission(self.client, self.options, self.drain))
