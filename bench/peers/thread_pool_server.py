"""What a model is usually put behind in Python: a FastAPI app, a pool of threads, and one `Llama` behind a lock.

Run as a module, it serves on 127.0.0.1; its arguments are the model's path, the port, and the numbers of threads in the
pool, of llama.cpp's threads and of KV cells.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from llama_cpp import Llama, LogitsProcessorList, MinTokensLogitsProcessor
from pydantic import BaseModel

Chunk = dict[str, Any]


class Request(BaseModel):
    """A request for a completion, or with `messages` for a chat completion; answers are always streamed."""

    prompt: str = ""
    messages: list[dict[str, str]] | None = None
    max_tokens: int = 16
    ignore_eos: bool = False
    seed: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05


class PooledModel:
    """One sequence, for which the threads of a pool queue up."""

    def __init__(self, path: str, *, workers: int, threads: int, cells: int) -> None:
        self._llama = Llama(path, n_ctx=cells, n_threads=threads, n_threads_batch=threads, verbose=False)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """Give the chunks of an answer as they come; a client that leaves is not computed for any further."""
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
        left = threading.Event()

        def work() -> None:
            try:
                with self._lock:
                    for chunk in self._generate(request):
                        if left.is_set():
                            return
                        loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except Exception as error:  # whatever llama.cpp's bindings raise, the client is told
                loop.call_soon_threadsafe(chunks.put_nowait, {"error": {"message": str(error)}})
            finally:
                loop.call_soon_threadsafe(chunks.put_nowait, None)

        work_done = loop.run_in_executor(self._pool, work)
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            await work_done
        finally:
            left.set()

    def _generate(self, request: Request) -> Iterator[Chunk]:
        options = request.model_dump(include={"max_tokens", "seed", "temperature", "top_k", "top_p", "min_p"})
        if request.ignore_eos:
            processor = MinTokensLogitsProcessor(request.max_tokens, self._llama.token_eos())
            options["logits_processor"] = LogitsProcessorList([processor])
        if request.messages is None:
            yield from self._llama.create_completion(request.prompt, stream=True, **options)
        else:
            yield from self._llama.create_chat_completion(request.messages, stream=True, **options)


def create_app(model: PooledModel) -> FastAPI:
    """Return the app: `/v1/completions`, `/v1/chat/completions`, `/v1/models` and `/health`."""
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "thread-pool", "object": "model"}]}

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> StreamingResponse:
        return StreamingResponse(_events(model.stream(request)), media_type="text/event-stream")

    return app


async def _events(chunks: AsyncIterator[Chunk]) -> AsyncIterator[str]:
    async for chunk in chunks:
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


if __name__ == "__main__":
    path, *numbers = sys.argv[1:]
    port, workers, threads, cells = map(int, numbers)
    app = create_app(PooledModel(path, workers=workers, threads=threads, cells=cells))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
