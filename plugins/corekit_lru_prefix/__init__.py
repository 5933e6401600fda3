"""Bundled plugin: the prefix cache `lru-prefix`, a layer of the allocator stack."""
