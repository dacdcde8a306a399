"""How each server is started with the same model, places, threads and context; what is not said has its default."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import yaml

from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.server import HOST, Server, free_port, run_server
from llamalane.errors import ConfigError

Environment = Mapping[str, str] | None


def serve(
    peer: Peer, setup: Setup, environment: Environment = None, *, program: Path | None = None
) -> AbstractContextManager[Server]:
    """Return a context in which `peer` runs on a free port, with `environment` beside this process's own.

    `program` is the executable of llama-server, or the file of the examples' server.
    """
    match peer:
        case Peer.LLAMALANE:
            return _serve_llamalane(setup, environment)
        case Peer.XLLAMACPP:
            return _serve_module("llamalane.bench.peers.xllamacpp_server", setup, environment)
        case Peer.LLAMA_SERVER:
            if program is None:
                raise ConfigError(f"{peer.value} needs its executable")
            return _serve_llama_server(setup, program, environment)
        case Peer.ONE_LOCK:
            return _serve_one_lock(setup, environment)
        case Peer.THREAD_POOL:
            return _serve_module("llamalane.bench.peers.thread_pool_server", setup, environment)
        case Peer.EXAMPLES_SERVER:
            if program is None:
                raise ConfigError(f"{peer.value} needs the file server.py of llama-cpp-python's examples/server")
            return _serve_example(setup, program, environment)


def serve_config(config: Path, environment: Environment = None) -> AbstractContextManager[Server]:
    """Return a context in which llamalane runs on a free port with a configuration file."""
    port = free_port()
    arguments = ["llamalane", "serve", f"--config={config}", f"--host={HOST}", f"--port={port}"]
    return run_server(["-m", *arguments], port, environment)


@contextmanager
def serve_settings(settings: object, environment: Environment = None) -> Iterator[Server]:
    """Run llamalane on a free port with a configuration that is written to a file for as long."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "llamalane.yaml"
        config.write_text(yaml.safe_dump(settings))
        with serve_config(config, environment) as server:
            yield server


def llamalane_settings(setup: Setup) -> dict[str, object]:
    """Return llamalane's configuration for `setup`."""
    settings: dict[str, object] = {
        "models": [{"path": str(setup.model)}],
        "streams": {"lanes": [{"places": setup.places, "threads": setup.threads}]},
        "kv": {"budget": setup.cells},
    }
    if setup.queue is not None:
        settings["scheduler"] = {"queue": {"max_requests": setup.queue}}
    return settings


def _serve_llamalane(setup: Setup, environment: Environment) -> AbstractContextManager[Server]:
    if setup.queue is not None:
        return serve_settings(llamalane_settings(setup), environment)
    port = free_port()
    numbers = [f"--places={setup.places}", f"--threads={setup.threads}", f"--kv-cells={setup.cells}"]
    return run_server(
        ["-m", "llamalane", "serve", str(setup.model), f"--host={HOST}", f"--port={port}", *numbers], port, environment
    )


def _serve_module(module: str, setup: Setup, environment: Environment) -> AbstractContextManager[Server]:
    port = free_port()
    numbers = map(str, (port, setup.places, setup.threads, setup.cells))
    return run_server(["-m", module, str(setup.model), *numbers], port, environment)


def _serve_llama_server(setup: Setup, program: Path, environment: Environment) -> AbstractContextManager[Server]:
    port = free_port()
    options = {
        "model": setup.model,
        "host": HOST,
        "port": port,
        "parallel": setup.places,
        "ctx-size": setup.cells,
        "threads": setup.threads,
        "threads-batch": setup.threads,
    }
    return run_server(_flags(options), port, environment, program=program)


def _serve_one_lock(setup: Setup, environment: Environment) -> AbstractContextManager[Server]:
    """Serve with llama_cpp.server as it does best: it cuts no stream when another request comes, which it would by
    default, and keeps the logits of the last token only.
    """
    port = free_port()
    options = {
        "model": setup.model,
        "host": HOST,
        "port": port,
        "n_ctx": setup.cells,
        "n_threads": setup.threads,
        "n_threads_batch": setup.threads,
        "interrupt_requests": False,
        "logits_all": False,
        "verbose": False,
    }
    return run_server(["-m", "llama_cpp.server", *_flags(options)], port, environment, health="/v1/models")


def _flags(options: Mapping[str, object]) -> list[str]:
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]


@contextmanager
def _serve_example(setup: Setup, script: Path, environment: Environment) -> Iterator[Server]:
    port = free_port()
    settings = {
        "server": {"host": HOST, "port": port},
        "model": {
            "path": str(setup.model),
            "n_ctx": setup.cells,
            "n_seq_max": setup.places,
            "threads": setup.threads,
            "threads_batch": setup.threads,
            "kv_unified": True,
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "server.json"
        config.write_text(json.dumps(settings))
        with run_server([str(script), "-C", str(config)], port, environment, health="/healthz") as server:
            yield server
