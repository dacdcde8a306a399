"""Benchmarks: load on any OpenAI-compatible server, and llamalane beside its peers.

Run by `llamalane bench` or `python -m llamalane.bench`; nothing here is part of the package's public names.
"""

__all__: list[str] = []
