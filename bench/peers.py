"""The servers that are measured: how each is started with the same model, places, threads and context."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from llamalane.bench.server import HOST, Server, free_port, run_server
from llamalane.errors import LlamalaneError


class Peer(enum.Enum):
    """A server that can be measured."""

    LLAMALANE = "llamalane"
    XLLAMACPP = "xllamacpp"
    """llama-server as a wheel from PyPI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all servers have in common.

    Attributes:
        model: the GGUF file.
        places: how many sequences run at once.
        threads: llama.cpp's threads.
        cells: KV cells for all sequences together, a multiple of 256 × `places`.
    """

    model: Path
    places: int
    threads: int
    cells: int


def serve(peer: Peer, setup: Setup, environment: Mapping[str, str] | None = None) -> AbstractContextManager[Server]:
    """Return a context in which `peer` runs on a free port, with `environment` beside this process's own."""
    port = free_port()
    numbers = {"places": setup.places, "threads": setup.threads, "kv-cells": setup.cells}
    match peer:
        case Peer.LLAMALANE:
            options = [f"--{name}={number}" for name, number in numbers.items()]
            arguments = ["llamalane", "serve", str(setup.model), f"--host={HOST}", f"--port={port}", *options]
        case Peer.XLLAMACPP:
            module = "llamalane.bench.xllamacpp_server"
            arguments = [module, str(setup.model), str(port), *map(str, numbers.values())]
    return run_server(["-m", *arguments], port, environment)


def serve_config(config: Path) -> AbstractContextManager[Server]:
    """Return a context in which llamalane runs on a free port with a configuration file."""
    port = free_port()
    arguments = ["llamalane", "serve", f"--config={config}", f"--host={HOST}", f"--port={port}"]
    return run_server(["-m", *arguments], port)


def build_of(peer: Peer) -> str:
    """Return what the peer's llama.cpp was built with: above all, which instruction sets it uses.

    Raises `LlamalaneError` when the peer is not installed.
    """
    match peer:
        case Peer.LLAMALANE:
            code = "import llama_cpp; print(llama_cpp.llama_print_system_info().decode())"
        case Peer.XLLAMACPP:
            code = "import xllamacpp; print(xllamacpp.get_system_info())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        problem = answer.stderr.strip().rpartition("\n")[2]
        raise LlamalaneError(f"{peer.value} cannot be measured: {problem}")
    return features(answer.stdout)


def features(system_info: str) -> str:
    """Return the names that llama.cpp's system information says are on, such as `CPU: AVX2 FMA OPENMP`."""
    device, _, switches = system_info.partition(":")
    pairs = (switch.partition("=") for switch in switches.split("|"))
    return f"{device.strip()}: {' '.join(name.strip() for name, _, state in pairs if state.strip() == '1')}"
