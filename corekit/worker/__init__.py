"""The worker: one rank. Tensors, rows and the forward pass. Knows no requests, queues or text."""
