"""Benchmarks of the engine and of a server. Cold; nothing here runs while serving."""
