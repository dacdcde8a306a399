"""OpenAI's API mounted in an app of your own, which has a lifespan of its own.

Run it with `MODEL=model.gguf uvicorn mounted_app:app`. OpenAI's clients then have the base URL
`http://localhost:8000/llm/v1`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from llamalane.api import ServerConfig, create_app, lifespan_of

llm = create_app(ServerConfig.for_model(os.environ["MODEL"]))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # A server runs the lifespan of the outermost app only, so that one has to enter the others'. The model loads
    # beside it: until it is there, the API answers 503.
    async with lifespan_of(llm)(app):
        app.state.greeting = "Hello"  # what your app needs
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/llm", llm)


@app.get("/")
async def greet() -> str:
    greeting: str = app.state.greeting
    return greeting
