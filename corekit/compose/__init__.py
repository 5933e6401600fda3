"""Composition: from a TOML file and installed distributions to a running engine. Cold; knows no step."""
