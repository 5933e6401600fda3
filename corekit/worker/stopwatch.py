"""Measures work on a device without waiting for it. Knows time; nothing of what is measured."""

from __future__ import annotations

from time import perf_counter

import torch


class Stopwatch:
    """From `start` to `stop`, in the order of the device's own work. `seconds` waits for the device to come to `stop`, not for what follows."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events = [torch.Event(device, enable_timing=True) for _ in range(2)] if device.type == "cuda" else None
        self._seconds = 0.0

    def start(self) -> None:
        if self._events is not None:
            self._events[0].record(torch.cuda.current_stream(self._device))  # by itself it would take the current device's
        else:
            self._seconds = -perf_counter()

    def stop(self) -> None:
        if self._events is not None:
            self._events[1].record(torch.cuda.current_stream(self._device))
        else:
            self._seconds += perf_counter()

    def seconds(self) -> float:
        if self._events is None:
            return self._seconds
        self._events[1].synchronize()  # a step that draws nothing was not waited for, and a time that is not over is an error
        return 1e-3 * self._events[0].elapsed_time(self._events[1])
