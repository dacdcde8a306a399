"""Requests made up from the API's own description: none makes the server fail, and every answer is as described.

Some 150 of them are the same each time. `make fuzz`, which sets FUZZ_CASES, makes up 5,000 new ones, and tells how to
repeat what it finds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from llamalane.api import create_app
from llamalane.api.config import ServerConfig
from tests.api.serving import served
from tests.api.test_keys import sha256
from tests.api.test_openapi import OPERATIONS, check
from tests.engine.test_lanes import as_if_each_lane_had_its_cores

CASES = int(os.environ.get("FUZZ_CASES", "150"))
REPEATED = "FUZZ_CASES" not in os.environ
KEY = "the key of an operator"
CELLS = 256
"""Tokens of the longest sequence: whatever `max_tokens` says, an output soon ends."""
TOO_LATE, TOO_LARGE = 504, 413
ENDED_BY_DONE, DONE = {"/v1/completions", "/v1/chat/completions"}, "[DONE]"
ENDING = {"post /admin/drain"}
"""After it, nothing is served any more."""
CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
]
LIKELY: Mapping[str, list[Any]] = {
    "model": ["tiny", "enc", "rank", "nobody"],
    "name": ["main", "nobody"],
    "priority": [1, 3, 5, "batch", "nothing"],
    "X-Priority": ["2", "agent", "nothing"],
}
"""Values of fields, headers and parts of a path that are seldom hit upon by chance."""
MOST_FIELDS = 4
"""So many fields has a body that it could do without: the more there are, the sooner one is refused."""

Case = schemathesis.Case[Any]

LABELS = [f"{method} {path}" for method, path, _ in OPERATIONS if f"{method} {path}" not in ENDING]
WITH_BODY = {
    f"{method} {path}"
    for method, path, operation in OPERATIONS
    if "application/json" in operation.get("requestBody", {}).get("content", ())
}
WEIGHTS = {label: 8 if label in WITH_BODY else 1 for label in LABELS}


class Server:
    """A server with models of all tasks, and what it says of itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.headers["x-api-key"] = KEY
        self.description = self.session.get(f"{url}/openapi.json").json()
        self.schema = schemathesis.openapi.from_dict(self.description)

    def send(self, case: Case) -> None:
        """Send a request, and check the answer."""
        response = case.call(base_url=self.url, session=self.session, timeout=60)
        if response.headers["content-type"][0].startswith("text/event-stream"):
            self._check_events(case, response.content)
        else:
            case.validate_response(response, checks=checks_for(case, response.status_code))

    def _check_events(self, case: Case, content: bytes) -> None:
        operation = self.description["paths"][case.path][case.method.lower()]
        described = operation["responses"]["200"]["content"]["text/event-stream"]["schema"]
        error = {"$ref": "#/components/schemas/ErrorAnswer"}
        lines = content.decode().splitlines()
        told = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        if case.path in ENDED_BY_DONE and told[-1] == DONE:
            told.pop()
        elif case.path in ENDED_BY_DONE:
            assert "error" in json.loads(told[-1]), "the stream was cut off"
        for event in map(json.loads, told):
            check(event, error if event.keys() == {"error"} else described, self.description)


def checks_for(case: Case, status: int) -> list[CheckFunction]:
    """Return what is checked of an answer."""
    left_out: set[CheckFunction] = set()
    if status == TOO_LATE:
        left_out.add(not_a_server_error)  # it is what the client has asked for
    if case.media_type != "application/json":
        left_out.add(negative_data_rejection)  # what is wrong before a form is encoded may be right in it
    if status == TOO_LARGE:
        left_out.add(negative_data_rejection)  # it takes this for an acceptance
    return [check for check in CHECKS if check not in left_out]


@pytest.fixture(scope="module")
def server(
    tiny_model: Path, tiny_encoder: Path, tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    config = ServerConfig.model_validate(
        {
            "models": [
                {"path": tiny_model, "name": "tiny"},
                {"path": tiny_encoder, "name": "enc", "task": "embed"},
                {"path": tiny_ranker, "name": "rank", "task": "rerank"},
            ],
            "streams": {
                "lanes": [
                    {"name": "main", "places": 4, "threads": 1},
                    {"name": "enc", "model": "enc", "places": 4, "threads": 1},
                    {"name": "rank", "model": "rank", "places": 4, "threads": 1},
                ],
            },
            "kv": {"budget": CELLS},
            "scheduler": {"queue": {"max_requests": 16}, "drain_timeout": 0},
            "api": {
                "keys": [{"name": "operator", "sha256": sha256(KEY), "admin": True}],
                "batches": {"folder": tmp_path_factory.mktemp("batches")},
            },
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        as_if_each_lane_had_its_cores(patch)
        with served(create_app(config)) as url, httpx.Client(base_url=url) as client:
            while client.get("/health").status_code == 503:  # until the models are loaded
                pass
            yield Server(url)


@pytest.mark.parametrize("label", LABELS)
def test_a_request_is_answered_as_the_description_says(server: Server, label: str) -> None:
    method, path = label.split(" ", 1)
    operation = server.schema[path][method]
    modes = [schemathesis.GenerationMode.POSITIVE]
    if label in WITH_BODY:
        modes.append(schemathesis.GenerationMode.NEGATIVE)
    count = max(1, CASES * WEIGHTS[label] // sum(WEIGHTS.values()))

    @settings(
        max_examples=count,
        derandomize=REPEATED,
        database=None,
        deadline=None,
        phases=[Phase.generate] if REPEATED else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def send(data: st.DataObject) -> None:
        mode = data.draw(st.sampled_from(modes))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if mode is schemathesis.GenerationMode.POSITIVE:
            make_likely(case, data)
        server.send(case)

    send()


def make_likely(case: Case, data: st.DataObject) -> None:
    """Let a case go further than to the first field that is refused."""
    body: Any = case.body
    if isinstance(body, dict):
        body = case.body = fewer_fields(body, required(case), data)
        for message in body.get("messages") or ():
            make_plain(message)
        if "messages" in body and "prompt" in body:
            del body["prompt"]
    parts: list[Any] = [body, case.path_parameters, case.headers]
    for fields in parts:
        for name in sorted(set(fields) & set(LIKELY)) if isinstance(fields, Mapping) else ():
            fields[name] = data.draw(st.sampled_from(LIKELY[name]))


def fewer_fields(body: Mapping[str, Any], needed: set[str], data: st.DataObject) -> dict[str, Any]:
    """Return a body with all that it needs, and some of the rest."""
    others = sorted(set(body) - needed)
    kept = data.draw(st.sets(st.sampled_from(others), max_size=MOST_FIELDS)) if others else set()
    return {name: value for name, value in body.items() if name in needed or name in kept}


def make_plain(message: dict[str, Any]) -> None:
    """Leave out of a message what only some roles may have."""
    if message["role"] == "tool" or not message.get("content"):
        message.update(role="user", content="x")
    for name in set(message) - {"role", "content"}:
        del message[name]


def required(case: Case) -> set[str]:
    """Return which fields a body cannot do without."""
    [body] = case.operation.definition.raw["requestBody"]["content"].values()
    return set(body["schema"].get("required", ()))
