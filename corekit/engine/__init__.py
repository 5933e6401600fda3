"""The engine: requests, blocks and steps, by ids only. Knows no tensors, no plugin names, no HTTP."""
