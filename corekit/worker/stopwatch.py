"""Measures work on a device without waiting for it. Knows time; nothing of what is measured."""

from __future__ import annotations

from time import perf_counter

import torch


class Stopwatch:
    """From `start` to `stop`, in the order of the device's own work. `seconds` may be asked once the device has done it."""

    def __init__(self, device: torch.device) -> None:
        self._events = [torch.Event(device, enable_timing=True) for _ in range(2)] if device.type == "cuda" else None
        self._seconds = 0.0

    def start(self) -> None:
        if self._events is not None:
            self._events[0].record()
        else:
            self._seconds = -perf_counter()

    def stop(self) -> None:
        if self._events is not None:
            self._events[1].record()
        else:
            self._seconds += perf_counter()

    def seconds(self) -> float:
        return self._seconds if self._events is None else 1e-3 * self._events[0].elapsed_time(self._events[1])
