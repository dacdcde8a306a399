"""What each server's llama.cpp was built with: above all, which instruction sets it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from llamalane.bench.peers.kinds import Peer
from llamalane.errors import LlamalaneError

_BINDINGS = "import llama_cpp; print(llama_cpp.llama_print_system_info().decode())"
_CODE = {
    Peer.LLAMALANE: _BINDINGS,
    Peer.XLLAMACPP: "import xllamacpp; print(xllamacpp.get_system_info())",
    Peer.ONE_LOCK: "import llama_cpp.server.app; " + _BINDINGS,
    Peer.THREAD_POOL: "import fastapi, uvicorn; " + _BINDINGS,
    Peer.EXAMPLES_SERVER: "import openai, safetensors, websockets; " + _BINDINGS,
}


def build_of(peer: Peer, program: Path | None = None) -> str:
    """Return the features of the peer's llama.cpp, of llama-server the version and the compiler, which is all that
    `program` tells; raises `LlamalaneError` when the peer is not installed.
    """
    if peer is Peer.LLAMA_SERVER:
        return _told_by(program)
    answer = subprocess.run([sys.executable, "-c", _CODE[peer]], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        problem = answer.stderr.strip().rpartition("\n")[2]
        raise LlamalaneError(f"{peer.value} cannot be measured: {problem}")
    return features(answer.stdout)


def _told_by(program: Path | None) -> str:
    try:
        answer = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LlamalaneError(f"{Peer.LLAMA_SERVER.value} cannot be measured: {error}") from error
    lines = (answer.stdout + answer.stderr).splitlines()
    return ", ".join(line for line in lines if line.startswith(("version", "built")))


def features(system_info: str) -> str:
    """Return the names that llama.cpp's system information says are on, such as `CPU: AVX2 FMA OPENMP`."""
    device, _, switches = system_info.partition(":")
    pairs = (switch.partition("=") for switch in switches.split("|"))
    return f"{device.strip()}: {' '.join(name.strip() for name, _, state in pairs if state.strip() == '1')}"
