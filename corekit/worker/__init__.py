"""The worker: one rank. Tensors, rows and the forward pass. Knows no requests, queues or text."""

from .worker import RankWorker

__all__ = ["RankWorker"]
