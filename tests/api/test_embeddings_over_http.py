"""Vectors, scores and tokens over real sockets: the OpenAI client, and HTTP as it is."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from llamalane.api import create_app
from llamalane.api.config import ServerConfig
from llamalane.streams.llama import Pooling
from tests.api.serving import served
from tests.engine.embedding_rig import said_by_llama_cpp
from tests.engine.running import tokens_of as bytes_of
from tests.engine.test_lanes import as_if_each_lane_had_its_cores
from tests.models.tiny_embedders import CLS, SEP, WIDTH, letters_of, tokens_of

TEXTS = ["a first text", "another one, quite a bit longer", "x"]
CLOSE = 1e-4


@pytest.fixture(scope="module")
def url(tiny_model: Path, tiny_encoder: Path, tiny_ranker: Path) -> Iterator[str]:
    config = ServerConfig.model_validate(
        {
            "models": [
                {"path": tiny_model, "name": "tiny", "aliases": ["gpt-4o-mini"]},
                {"path": tiny_encoder, "name": "enc", "task": "embed", "aliases": ["text-embedding-3-small"]},
                {"path": tiny_ranker, "name": "rank", "task": "rerank"},
            ],
            "streams": {
                "lanes": [
                    {"name": "main", "places": 4, "threads": 1},
                    {"name": "enc", "model": "enc", "places": 4, "threads": 1},
                    {"name": "rank", "model": "rank", "places": 4, "threads": 1},
                ],
            },
            "kv": {"flash_attention": "off"},
            "scheduler": {"tenants": {"few": {"tokens_per_minute": 20}}},
            "api": {"tenant_from_user": True},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        as_if_each_lane_had_its_cores(patch)
        with served(create_app(config)) as address:
            transport = httpx.HTTPTransport(retries=5)
            with httpx.Client(base_url=address, transport=transport) as client:
                while client.get("/v1/models").status_code == 503:  # until the models are loaded
                    pass
            yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def expected(tiny_encoder: Path) -> list[Any]:
    vectors = said_by_llama_cpp(tiny_encoder, [tokens_of(text) for text in TEXTS], Pooling.CLS)
    return [vector / np.linalg.norm(vector) for vector in vectors]


def test_vectors_as_the_openai_client_asks_for_them(client: openai.OpenAI, expected: list[Any]) -> None:
    answer = client.embeddings.create(model="text-embedding-3-small", input=TEXTS)  # base64, which it decodes
    assert (answer.object, answer.model) == ("list", "enc")
    assert [(one.object, one.index) for one in answer.data] == [("embedding", index) for index in range(3)]
    for one, vector in zip(answer.data, expected, strict=True):
        assert np.abs(np.array(one.embedding) - vector).max() < CLOSE
        assert np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-5)
    tokens = sum(len(tokens_of(text)) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


def test_floats_and_base64_are_the_same_numbers(http: httpx.Client) -> None:
    floats, coded = (
        http.post("/v1/embeddings", json={"model": "enc", "input": "abc", "encoding_format": form}).json()["data"][0]
        for form in ("float", "base64")
    )
    decoded = np.frombuffer(base64.b64decode(coded["embedding"]), "<f4")
    assert np.array_equal(np.array(floats["embedding"], np.float32), decoded)
    assert len(decoded) == WIDTH


def test_every_form_of_input(client: openai.OpenAI) -> None:
    forms: list[Any] = ["abc", ["abc"], tokens_of("abc"), [tokens_of("abc")]]
    answers = [client.embeddings.create(model="enc", input=form) for form in forms]
    assert all(len(answer.data) == 1 and answer.usage.total_tokens == 5 for answer in answers)
    vectors = np.array([answer.data[0].embedding for answer in answers])
    assert np.abs(vectors - vectors[0]).max() < CLOSE
    bare = client.embeddings.create(model="enc", input="abc", extra_body={"add_special_tokens": False})
    assert bare.usage.total_tokens == 3


def test_dimensions(client: openai.OpenAI) -> None:
    whole, cut = (client.embeddings.create(model="enc", input="abc", dimensions=count) for count in (WIDTH, 8))
    first = np.array(whole.data[0].embedding[:8])
    assert np.abs(np.array(cut.data[0].embedding) - first / np.linalg.norm(first)).max() < CLOSE
    for dimensions in (0, WIDTH + 1):
        with pytest.raises(openai.BadRequestError, match=f"from 1 to {WIDTH}") as caught:
            client.embeddings.create(model="enc", input="abc", dimensions=dimensions)
        assert caught.value.param == "dimensions"


def test_a_long_input_is_told_with_the_numbers_or_cut(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="102 tokens, and the model takes 96") as caught:
        client.embeddings.create(model="enc", input=["short", "a " * 100])
    assert (caught.value.param, caught.value.code) == ("input[1]", "context_length_exceeded")
    for length in (-1, 20):
        answer = client.embeddings.create(model="enc", input="a " * 100, extra_body={"truncate_prompt_tokens": length})
        assert answer.usage.total_tokens == (96 if length == -1 else length)


def test_priority_in_body_header_or_tier(http: httpx.Client) -> None:
    for fields, headers, level in (
        ({"priority": "batch"}, {}, "5"),
        ({"priority": 2}, {"X-Priority": "4"}, "2"),
        ({}, {"X-Priority": "interactive"}, "1"),
        ({"service_tier": "flex"}, {}, "5"),
        ({}, {}, "3"),
    ):
        answer = http.post("/v1/embeddings", json={"input": "abc", **fields}, headers=headers)
        assert (answer.status_code, answer.headers["x-priority"]) == (200, level)


def test_many_clients_with_many_texts_each_beside_chats(client: openai.OpenAI) -> None:
    def embed(number: int) -> int:
        texts = [f"text {number} {index}" for index in range(50)]
        answer = client.embeddings.create(model="enc", input=texts, extra_body={"priority": 1 + number % 5})
        return len(answer.data)

    def chat(number: int) -> int:
        answer = client.completions.create(model="tiny", prompt=f"prompt {number}", max_tokens=8)
        return len(answer.choices)

    with ThreadPoolExecutor(16) as threads:
        vectors = [threads.submit(embed, number) for number in range(10)]
        texts = [threads.submit(chat, number) for number in range(10)]
        assert [one.result() for one in vectors] == [50] * 10
        assert [one.result() for one in texts] == [1] * 10


def test_a_tenants_limits_hold_for_texts(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="20 tokens a minute") as never:
        client.embeddings.create(model="enc", input=["abcdefgh"] * 5, user="few")
    assert never.value.param == "input"
    assert client.embeddings.create(model="enc", input="a" * 15, user="few").usage.total_tokens == 17
    with pytest.raises(openai.RateLimitError) as later:
        client.embeddings.create(model="enc", input="a" * 15, user="few")
    assert later.value.code == "tenant_limit"
    assert int(later.value.response.headers["retry-after"]) >= 1


def test_models_and_the_tasks_that_they_are_for(client: openai.OpenAI, http: httpx.Client) -> None:
    models = http.get("/v1/models").json()["data"]
    assert [(one["id"], one["task"], one["max_model_len"]) for one in models] == [
        ("tiny", "generate", 2048),
        ("enc", "embed", 96),
        ("rank", "rerank", 96),
    ]
    assert [one.get("dimensions") for one in models] == [None, WIDTH, None]
    assert client.models.retrieve("text-embedding-3-small").id == "enc"
    with pytest.raises(openai.BadRequestError, match="'enc' is not for the task generate: for that there is tiny") as a:
        client.chat.completions.create(model="enc", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError, match="'tiny' is not for the task embed: for that there is enc") as b:
        client.embeddings.create(model="tiny", input="abc")
    assert (a.value.param, a.value.code) == (b.value.param, b.value.code) == ("model", "wrong_task")
    with pytest.raises(openai.NotFoundError) as unknown:
        client.embeddings.create(model="text-embedding-4", input="abc")
    assert unknown.value.code == "model_not_found"
    assert http.post("/v1/rerank", json={"model": "enc", "query": "q", "documents": ["d"]}).status_code == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": 5}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": [[5], [-1]]}, "input[1]"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 97}, "truncate_prompt_tokens"),
        ({"input": "a", "priority": 9}, "priority"),
        ({"input": "a", "deadline": -1}, "deadline"),
        ({"input": "a", "service_tier": "gold"}, "service_tier"),
        ({"input": "a", "user": "u" * 600}, "user"),
        ({"input": "a", "model": 5}, "model"),
        ({"input": "a", "temperature": 1}, "temperature"),
    ],
)
def test_bad_requests_for_vectors(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = http.post("/v1/embeddings", json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_bodies_that_are_no_json(http: httpx.Client) -> None:
    for content in (b"", b"{", b"[]", b'{"input": "a", "input": "b"}', b'{"input": "\xff"}', b'{"input": "\\ud800"}'):
        assert http.post("/v1/embeddings", content=content).status_code == 400
    assert http.get("/v1/embeddings").status_code == 405


def test_scores_in_jinas_shape(http: httpx.Client, tiny_ranker: Path) -> None:
    query, documents = "which one", ["a first document", "another", "the third. one"]
    pairs = [[CLS, *letters_of(query), SEP, *letters_of(text), SEP] for text in documents]
    raw = [float(vector[0]) for vector in said_by_llama_cpp(tiny_ranker, pairs, Pooling.RANK)]
    order = sorted(range(3), key=lambda index: -raw[index])
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        answer = http.post(path, json={"model": "rank", "query": query, "documents": documents})
        body = answer.json()
        assert (answer.status_code, body["model"]) == (200, "rank")
        assert [one["index"] for one in body["results"]] == order
        scores = [one["relevance_score"] for one in body["results"]]
        assert scores == pytest.approx([1 / (1 + np.exp(-raw[index])) for index in order], abs=1e-4)
        assert "document" not in body["results"][0]
        assert body["usage"]["total_tokens"] == sum(map(len, pairs))
    objects = [{"text": text} for text in documents]
    best = http.post(
        "/v1/rerank",
        json={"query": query, "documents": objects, "top_n": 1, "return_documents": True, "use_activation": False},
    ).json()["results"]
    assert best == [
        {"index": order[0], "relevance_score": pytest.approx(raw[order[0]], abs=1e-4), "document": objects[order[0]]}
    ]
    assert len(http.post("/rerank", json={"query": query, "documents": documents, "top_n": 99}).json()["results"]) == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": "a"}, "documents"),
        ({"query": "q", "documents": ["a", 5]}, "documents"),
        ({"query": "q", "documents": [{"title": "a"}]}, "documents"),
        ({"query": "q", "documents": ["a"] * 2049}, "documents"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": ["a"], "rank_fields": ["x"]}, "rank_fields"),
        ({"query": "q", "documents": ["ok", "a " * 100]}, "documents[1]"),
        ({"query": "q", "documents": ["a"], "model": "enc"}, "model"),
    ],
)
def test_bad_requests_for_scores(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = http.post("/v1/rerank", json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_tokens_in_vllms_shape(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"prompt": "a bc"}).json()
    assert answer == {"tokens": bytes_of("a bc"), "count": 5, "max_model_len": 2048}
    bare = http.post("/tokenize", json={"model": "tiny", "prompt": "a bc", "add_special_tokens": False}).json()
    assert bare["tokens"] == bytes_of("a bc")[1:]
    other = http.post("/tokenize", json={"model": "enc", "prompt": "abc de"}).json()
    assert other == {"tokens": tokens_of("abc de"), "count": 7, "max_model_len": 96}
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    assert http.post("/detokenize", json={"tokens": chat["tokens"]}).json() == {"prompt": "<s>[user]hi</s>[assistant]"}
    assert http.post("/detokenize", json={"model": "enc", "tokens": other["tokens"]}).json() == {
        "prompt": "[CLS] abc de[SEP]"
    }
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    for path, fields, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "model": "enc"}, "model"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": "a", "temperature": 1}, "temperature"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
    ):
        refused = http.post(path, json=fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), fields
    assert http.post("/tokenize", json={"prompt": "a", "model": "huge"}).status_code == 404


def test_metrics_count_texts_and_the_queue_shows_none_left(http: httpx.Client) -> None:
    def value(name: str, label: str = "") -> float:
        lines = http.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(name) and label in line).split()[-1])

    histograms = [f"llamalane_{name}_count" for name in ("text_e2e_latency_seconds", "text_prompt_tokens")]
    http.post("/v1/embeddings", json={"input": "x"})  # a level's histograms appear with its first request
    before = value("llamalane_texts_embedded_total")
    counted = [value(name, 'level="3"') for name in histograms]
    http.post("/v1/embeddings", json={"input": ["a", "b", "c"]})
    assert value("llamalane_texts_embedded_total") == before + 3
    assert [value(name, 'level="3"') for name in histograms] == [count + 3 for count in counted]
    assert value("llamalane_text_e2e_latency_seconds_sum", 'level="3"') > 0
    assert value("llamalane_lane_steps_total", 'lane="enc"') > 0
    assert json.loads(http.get("/v1/queue").content)["data"] == []
