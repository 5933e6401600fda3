"""Bundled plugin: the swap space `cpu-swap`, a layer of the allocator stack."""
