"""Options that several of the benchmarks' commands have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from llamalane.errors import LlamalaneError

Model = Annotated[Path | None, typer.Argument(metavar="MODEL.gguf", help="The model.", show_default="SmolLM2")]
PACKAGES = ("h11", "httpx", "matplotlib", "psutil", "sse-starlette", "starlette-context", "xllamacpp")
"""What benchmarks need beside what the server does."""

LlamaServer = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Measure that executable of llama-server, too.", show_default=False)
]
Places = Annotated[int, typer.Option(help="How many sequences run at once.", metavar="N", min=1)]
Threads = Annotated[int | None, typer.Option(help="llama.cpp's threads.", metavar="N", min=1, show_default="all cores")]
KVCells = Annotated[int, typer.Option("--kv-cells", help="KV cells for all sequences together.", metavar="N", min=256)]
Words = Annotated[int, typer.Option(help="Mean number of words in a prompt.", metavar="N", min=1)]
Tokens = Annotated[int, typer.Option(help="Mean number of tokens in an answer.", metavar="N", min=1)]
Seed = Annotated[int | None, typer.Option(help="Chooses the prompts.", metavar="N", min=0, show_default="a new one")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write all that was measured to FILE.")
]
BusyOk = Annotated[bool, typer.Option("--busy-ok", help="Measure although other processes use the CPU.")]


@contextmanager
def needed_packages() -> Iterator[None]:
    """Tell what has to be installed when an import in the context finds something missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise LlamalaneError(f"a benchmark needs {error.name}: pip install {' '.join(PACKAGES)}") from error
