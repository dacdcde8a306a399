"""llama-server in a process of its own, from the wheel `xllamacpp`; what is not said here has its default.

Its arguments are the model's path, the port, and the numbers of places, threads and KV cells.
"""

from __future__ import annotations

import sys
import threading

import xllamacpp


def serve(model: str, port: int, places: int, threads: int, cells: int) -> None:
    """Serve `model` on 127.0.0.1 until the process is ended."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = places
    params.n_ctx = cells
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)  # serves from threads of its own until it is collected
    print(f"serving {model} on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    path, *numbers = sys.argv[1:]
    serve(path, *map(int, numbers))
