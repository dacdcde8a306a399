"""`llamalane hash-key`: what a configuration keeps of an API key."""

from __future__ import annotations

import sys

import typer

from llamalane.api.keys import digest_of
from llamalane.errors import ConfigError

SHORTEST = 16
"""Shorter keys can be found out from their hash, which is quick to compute."""


def print_hash() -> None:
    """Read a key, from a prompt that does not show it or from standard input, and print its SHA-256."""
    key = typer.prompt("API key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read().strip()
    typer.echo(digest_of(_checked(key)).hex())


def _checked(key: str) -> bytes:
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("an API key is one word of printable ASCII characters: HTTP headers carry it")
    if len(key) < SHORTEST:
        raise ConfigError(f"an API key needs at least {SHORTEST} characters; `openssl rand -hex 32` prints a good one")
    return key.encode()
