"""While nothing comes of a stream, comments say where its request stands, and clients that drop them lose nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import openai
import pytest

from llamalane.api import ApiConfig, create_app
from llamalane.api.pings import describe
from llamalane.scheduler import EventKind, RequestState, Standing
from tests.api.asgi import exchange
from tests.api.fake_engine import Play, ScriptedEngine, as_engine
from tests.api.serving import SERVERS
from tests.api.test_servers import ENDLESS, Observed, observing

SOON = ApiConfig(ping_after=0.01)


def standing(state: RequestState, position: int | None = None, **fields: Any) -> Standing:
    known: dict[str, Any] = {"waiting": 17, "computed": 0, "tokens": 4000, "computing": False, "generated": 0}
    return Standing(state=state, position=position, **{**known, **fields})


WAITING = standing(RequestState.WAITING, 3)
COMPUTING = standing(RequestState.RUNNING, computing=True, computed=512)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (WAITING, "queued, position 3 of 17"),
        (COMPUTING, "computing the prompt, 512 of 4000 tokens"),
        (standing(RequestState.PARKING, generated=9), "parked"),
        (standing(RequestState.WAITING, 1, generated=9), "parked, position 1 of 17"),
        (
            standing(RequestState.RUNNING, computing=True, computed=7, generated=9),
            "computing the prompt again, 7 of 4000 tokens",
        ),
        (standing(RequestState.RUNNING, generated=9), "generating, 9 tokens so far"),
    ],
)
def test_a_standing_in_words(told: Standing, text: str) -> None:
    assert describe(told) == text


@pytest.mark.anyio
async def test_comments_tell_of_the_first_choice_that_has_not_ended() -> None:
    held = anyio.Event()
    engine = ScriptedEngine([Play(["first"]), Play(release=held)], standings=[WAITING, COMPUTING])
    body = {"prompt": "x", "n": 2, "stream": True}
    async with exchange(create_app(as_engine(engine), api=SOON), "/v1/completions", body) as request:
        await request.next()
        while not (received := await request.body()).startswith(b":"):
            pass
        assert received == b": computing the prompt, 512 of 4000 tokens\n\n"
        held.set()


class Listening(httpx.SyncByteStream):
    """An answer's body that tells what passes."""

    def __init__(self, body: httpx.SyncByteStream, heard: Listener) -> None:
        self._body = body
        self._heard = heard

    def __iter__(self) -> Iterator[bytes]:
        for data in self._body:
            self._heard(data)
            yield data

    def close(self) -> None:
        self._body.close()


class Listener(httpx.HTTPTransport):
    """Keeps what was received, and closes `connection` as soon as a comment tells a position."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self.received = b""
        self._connection = connection

    def __call__(self, data: bytes) -> None:
        self.received += data
        if b": queued, position 1 of 1\n\n" in self.received:
            self._connection.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        assert isinstance(answer.stream, httpx.SyncByteStream)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=Listening(answer.stream, self))


@pytest.mark.parametrize("server", SERVERS)
def test_openai_clients_read_on_after_comments(tiny_model: Path, server: str) -> None:
    with observing(tiny_model, server, SOON) as observed, observed.begin(**ENDLESS) as endless:
        observed.wait_for(EventKind.STARTED)
        listener = Listener(endless)
        chunks = list(ask(observed, listener))
    assert b": queued, position 1 of 1\n\n" in listener.received
    texts = [choice.text for chunk in chunks for choice in chunk.choices]
    assert len(texts) >= 2
    assert chunks[-1].choices[0].finish_reason == "length"


def ask(observed: Observed, listener: Listener) -> Sequence[Any]:
    """Return the chunks of a stream, as the real client reads them."""
    with openai.OpenAI(
        base_url=f"{observed.url}/v1", api_key="none", http_client=cast(Any, httpx.Client(transport=listener))
    ) as client:
        return list(
            client.completions.create(
                model="tiny", prompt="y", max_tokens=4, stream=True, extra_body={"ignore_eos": True}
            )
        )
