"""An app of your own, with the engine in its lifespan.

Run it with `MODEL=model.gguf uvicorn own_app:app`, and ask it:

    curl -N -H 'Content-Type: application/json' -d '{"text": "Llamas live in the Andes."}' localhost:8000/summaries
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypedDict

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from llamalane import Engine, EngineConfig, RequestHandle, SamplingParameters
from llamalane.errors import RequestError, UnavailableError


class State(TypedDict):
    engine: Engine


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[State]:
    async with Engine(EngineConfig.for_model(os.environ["MODEL"])) as engine:
        yield {"engine": engine}


app = FastAPI(lifespan=lifespan)


def engine_of(request: Request) -> Engine:
    engine: Engine = request.state.engine
    return engine


class Text(BaseModel):
    text: str
    words: int = Field(default=30, ge=1, le=200)


@app.post("/summaries")
async def summarize(text: Text, engine: Annotated[Engine, Depends(engine_of)]) -> StreamingResponse:
    handle = await engine.submit_chat(
        [{"role": "user", "content": f"Summarize in at most {text.words} words:\n\n{text.text}"}],
        sampling=SamplingParameters(max_tokens=3 * text.words),
        priority="interactive",
    )
    return StreamingResponse(pieces(handle), media_type="text/plain")


async def pieces(handle: RequestHandle) -> AsyncIterator[str]:
    try:
        async for text in handle:
            yield text
    finally:
        handle.cancel()  # the client may have gone; a request that has ended does not mind


@app.exception_handler(RequestError)
async def refuse(request: Request, error: RequestError) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_code=400)


@app.exception_handler(UnavailableError)
async def ask_to_come_back(request: Request, error: UnavailableError) -> JSONResponse:
    """Answer what cannot be served now: above all, a full queue."""
    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, round(error.retry_after)))}
    return JSONResponse({"error": str(error)}, status_code=503, headers=headers)
