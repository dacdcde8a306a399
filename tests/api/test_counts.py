"""What is counted beforehand is what the model gets, also where a chat template writes no BOS token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from llamalane.api import create_app
from llamalane.api.config import ServerConfig
from llamalane.scheduler import ModelConfig
from tests.api.serving import served
from tests.models import chat_templates as templates
from tests.models.tiny_gguf import Kind, write_model

MESSAGES = [{"role": "user", "content": "Grüße!"}]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = tmp_path_factory.mktemp("without-bos") / "model.gguf"
    write_model(model, Kind.DENSE, chat_template=templates.PLAIN)
    with served(create_app(ServerConfig(models=[ModelConfig(path=model, name="model")]))) as url:
        # While the model loads the answer is 503, which this client tries again.
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=20).models.list()
        with httpx.Client(base_url=url) as client:
            yield client


def usage_of(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, int]:
    answer = http.post(path, json=body)
    assert answer.status_code == 200
    usage: dict[str, int] = answer.json()["usage"]
    return usage


def test_tokens_of_a_response(http: httpx.Client) -> None:
    used = usage_of(http, "/v1/responses", {"input": MESSAGES, "max_output_tokens": 1})["input_tokens"]
    counted = http.post("/v1/responses/input_tokens", json={"input": MESSAGES}).json()
    assert counted["input_tokens"] == used


def test_tokens_of_a_message(http: httpx.Client) -> None:
    used = usage_of(http, "/v1/messages", {"messages": MESSAGES, "max_tokens": 1})
    counted = http.post("/v1/messages/count_tokens", json={"messages": MESSAGES}).json()
    assert counted == {"input_tokens": used["input_tokens"] + used["cache_read_input_tokens"]}


def test_tokens_of_a_chat(http: httpx.Client) -> None:
    used = usage_of(http, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1})
    told = http.post("/tokenize", json={"messages": MESSAGES}).json()
    assert told["count"] == used["prompt_tokens"]
    raw = usage_of(http, "/v1/completions", {"prompt": told["tokens"], "max_tokens": 1})
    assert raw["prompt_tokens"] == told["count"]
    text = http.post("/detokenize", json={"tokens": told["tokens"]}).json()["prompt"]
    assert text.startswith("<s><|im_start|>user")
    assert text.count("<s>") == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses/input_tokens", {"input": "x"}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"prompt": "x"}),
    ],
)
def test_a_text_that_would_keep_the_tokenizer_busy_for_hours_is_refused(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    text = json.dumps(body).replace('"x"', f'"{"x" * 15_000_000}"')
    answer = http.post(path, content=text)
    assert answer.status_code == 400
    assert "is not tokenized; at most" in answer.json()["error"]["message"]
    longer = {**body, "prompt": "word " * 2000} if "prompt" in body else body
    assert http.post(path, json=longer).status_code == 200, "longer than a sequence is not too long"
