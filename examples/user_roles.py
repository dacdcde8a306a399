"""The priority follows the role of whoever has signed in, and users do not see one another's cached prompts.

Run it with `MODEL=model.gguf uvicorn user_roles:app`, and ask it:

    curl -H 'Authorization: Bearer dora' -H 'Content-Type: application/json' -d '{"text": "Hello"}' localhost:8000/chat
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from llamalane import Engine, EngineConfig, SamplingParameters


class Role(StrEnum):
    DOCTOR = "doctor"
    CLERK = "clerk"
    ROBOT = "robot"


LEVELS = {Role.DOCTOR: "interactive", Role.CLERK: "normal", Role.ROBOT: "batch"}


@dataclass(frozen=True)
class User:
    name: str
    role: Role


# Your own sign-in takes the place of this: whatever tells, from a request, who asks.
USERS = {user.name: user for user in (User("dora", Role.DOCTOR), User("carl", Role.CLERK), User("rob", Role.ROBOT))}


def user_of(token: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> User:
    if token.credentials not in USERS:
        raise HTTPException(401, "no such user")
    return USERS[token.credentials]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Engine]]:
    async with Engine(EngineConfig.for_model(os.environ["MODEL"])) as engine:
        yield {"engine": engine}


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    text: str


class Answer(BaseModel):
    text: str
    level: int
    waited: float


@app.post("/chat")
async def chat(question: Question, user: Annotated[User, Depends(user_of)], request: Request) -> Answer:
    engine: Engine = request.state.engine
    result = await engine.chat(
        [{"role": "user", "content": question.text}],
        sampling=SamplingParameters(max_tokens=64),
        priority=LEVELS[user.role],
        tenant=user.name,
    )
    return Answer(text=result.text, level=result.level, waited=result.timings.wait)
