"""`/metrics`, read as Prometheus reads it, after real requests on the tiny model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI

from llamalane.api import create_app
from llamalane.api.metric_families import MODEL
from llamalane.scheduler import (
    Engine,
    EngineConfig,
    Event,
    EventKind,
    KVConfig,
    LaneConfig,
    LookupConfig,
    ModelConfig,
    QueueConfig,
    SchedulerConfig,
    StreamsConfig,
)
from tests.api.asgi import client_of
from tests.api.fake_engine import ScriptedEngine, as_engine
from tests.api.scraping import Scrape

pytestmark = pytest.mark.anyio

SHORT: dict[str, Any] = {"prompt": "x", "max_tokens": 4, "ignore_eos": True}
ENDLESS: dict[str, Any] = {"prompt": "x", "ignore_eos": True, "priority": 5}
LONG_PROMPT = "a prompt that is long enough to be worth keeping for the next one; " * 2

HISTOGRAMS = {
    "request_queue_time_seconds": 21,
    "time_to_first_token_seconds": 22,
    "inter_token_latency_seconds": 19,
    "request_time_per_output_token_seconds": 19,
    "request_prefill_time_seconds": 21,
    "request_decode_time_seconds": 21,
    "request_inference_time_seconds": 21,
    "e2e_request_latency_seconds": 21,
    "request_num_preemptions": 7,
}
"""vLLM's histograms, and how many bounds each has there beside the infinite one."""


class Served:
    """An app on a real engine with one place, and what happens there."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient, events: Sequence[Event]) -> None:
        self.app = app
        self.client = client
        self._events = events

    async def ask(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json=body)

    async def until(self, kind: EventKind) -> None:
        """Wait until something has happened."""
        while not any(event.kind is kind for event in self._events):
            await anyio.lowlevel.checkpoint()

    async def scrape(self) -> Scrape:
        return Scrape((await self.client.get("/metrics")).text)


@pytest.fixture
async def served(tiny_model: Path, anyio_backend: object) -> AsyncIterator[Served]:
    events: list[Event] = []
    config = EngineConfig(
        models=[ModelConfig(path=tiny_model, name="tiny", aliases=["other"])],
        streams=StreamsConfig(lanes=[LaneConfig(places=1, threads=1)]),
        kv=KVConfig(budget=1024),
        scheduler=SchedulerConfig(
            queue=QueueConfig(max_requests=1), drain_timeout=0, guaranteed_share=0, target_itl=10
        ),
    )
    async with Engine(config, observer=events.append) as engine:
        app = create_app(engine)
        async with client_of(app) as client:
            yield Served(app, client, events)


async def test_each_finished_request_is_in_every_histogram_of_its_level(served: Served) -> None:
    for _ in range(2):
        assert (await served.ask(**SHORT, priority=2, model="other")).status_code == 200
    assert (await served.ask(**SHORT)).status_code == 200
    scrape = await served.scrape()
    for name, bounds in HISTOGRAMS.items():
        assert scrape.kinds[f"llamalane_{name}"] == "histogram"
        tokens = 2 * 3 if name == "inter_token_latency_seconds" else 2
        assert scrape.value(f"llamalane_{name}_count", model_name="tiny", level="2") == tokens
        assert scrape.value(f"llamalane_{name}_bucket", level="2", le="+Inf") == tokens
        of_one_level = [labels for labels in scrape.labels(f"llamalane_{name}_bucket") if labels["level"] == "2"]
        assert len(of_one_level) == bounds + 1
    assert scrape.value("llamalane_request_prompt_tokens_sum", level="2") == 2 * 2
    assert scrape.value("llamalane_request_generation_tokens_bucket", level="2", le="2.0") == 0
    assert scrape.value("llamalane_request_generation_tokens_bucket", level="2", le="5.0") == 2
    assert scrape.value("llamalane_request_params_max_tokens_sum", level="2") == 2 * 4
    first, total = (
        scrape.value(f"llamalane_{name}_sum", level="2")
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds")
    )
    between = scrape.value("llamalane_inter_token_latency_seconds_sum", level="2")
    assert first + between == pytest.approx(total)
    assert {labels["level"] for labels in scrape.labels("llamalane_e2e_request_latency_seconds_count")} == {"2", "3"}


async def test_counters_begin_at_zero_so_that_the_first_event_is_seen(served: Served) -> None:
    scrape = await served.scrape()
    for name, label, values in (
        ("requests_rejected", "reason", ("requests", "tokens", "concurrent", "tokens_per_minute", "shed", "deadline")),
        ("parks", "how", ("pause", "swap", "recompute")),
        ("parks_by_reason", "reason", ("displaced", "cells", "time", "reclaimed")),
        ("deadlines_missed", "state", ("refused", "waiting", "running")),
        ("request_success", "finished_reason", ("stop", "length", "abort", "error")),
        ("requests_ended", "outcome", ("finished", "cancelled", "failed", "expired")),
        ("requests_in_time", "level", "12345"),
        ("num_preemptions", "level", "12345"),
        ("admissions_by_share", "level", "12345"),
        ("admissions_promoted", "level", "12345"),
        ("swap_out_bytes", "what", ("parked", "prompts")),
        ("swap_in_bytes", "what", ("parked", "prompts")),
    ):
        assert scrape.kinds[f"llamalane_{name}"] == "counter"
        for value in values:
            assert scrape.value(f"llamalane_{name}_total", **{label: value}) == 0


async def test_steps_and_tokens_add_up(served: Served) -> None:
    await served.ask(**SHORT)
    scrape = await served.scrape()
    steps = scrape.value("llamalane_lane_steps_total", lane="main")
    assert scrape.value("llamalane_lane_step_seconds_count", lane="main") == steps
    assert scrape.value("llamalane_lane_step_rows_sum", lane="main") == 3, "the first token comes with the prompt"
    assert scrape.value("llamalane_iteration_tokens_total_sum", lane="main") == 2 + 3
    assert scrape.value("llamalane_generation_tokens_total", model_name="tiny") == 4
    spent = sum(scrape.value(f"llamalane_lane_{part}_seconds_total", lane="main") for part in ("decode", "sample"))
    assert scrape.value("llamalane_lane_step_seconds_sum", lane="main") == pytest.approx(spent)


async def test_drafts_are_counted(tiny_model: Path, anyio_backend: object) -> None:
    lookup = LookupConfig(draft_tokens=8)
    config = EngineConfig(
        models=[ModelConfig(path=tiny_model, name="tiny")],
        streams=StreamsConfig(lanes=[LaneConfig(places=1, threads=1)], lookup=lookup),
    )
    async with Engine(config) as engine:
        app = create_app(engine)
        async with client_of(app) as client:
            served = Served(app, client, [])
            # With two letters to choose from, an output repeats itself.
            bias = {str(token): -100 for token in range(260) if token not in (100, 101)}
            body = {"prompt": "xyz", "max_tokens": 50, "temperature": 0, "ignore_eos": True, "logit_bias": bias}
            answer = await served.ask(**body)
            scrape = await served.scrape()
    assert answer.json()["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 50,
        "total_tokens": 54,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    drafted = scrape.value("llamalane_spec_decode_num_draft_tokens_total", lane="main")
    accepted = scrape.value("llamalane_spec_decode_num_accepted_tokens_total", lane="main")
    assert 0 < accepted < drafted
    assert scrape.value("llamalane_lane_steps_total", lane="main") == 50 - accepted
    assert scrape.value("llamalane_generation_tokens_total") == 50
    assert scrape.value("llamalane_iteration_tokens_total_sum", lane="main") == 4 + 49 - accepted + drafted
    assert scrape.value("llamalane_request_generation_tokens_sum", level="3") == 50


async def test_a_prompt_that_comes_again_is_a_hit(served: Served) -> None:
    for _ in range(2):
        await served.ask(**{**SHORT, "prompt": LONG_PROMPT})
    scrape = await served.scrape()
    hits = scrape.value("llamalane_prefix_cache_hits_total")
    assert hits == scrape.value("llamalane_prompt_tokens_cached_total") > len(LONG_PROMPT) - 32
    assert scrape.value("llamalane_prefix_cache_queries_total") == 2 * (len(LONG_PROMPT) + 1)
    assert scrape.value("llamalane_requests_with_cached_prefix_total") == 1
    assert scrape.value("llamalane_lane_kv_cells_kept") > 0
    assert scrape.value("llamalane_kv_cache_usage_perc") == 0, "what is only kept is free for others"


async def test_displacement_rejection_and_a_client_that_leaves_are_counted(served: Served) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: served.ask(**ENDLESS))
        await served.until(EventKind.STARTED)
        during = await served.scrape()
        assert during.value("llamalane_num_requests_running", level="5") == 1
        assert during.value("llamalane_num_requests_running", level="1") == 0
        assert 0 < during.value("llamalane_kv_cache_usage_perc", lane="main") <= 1
        assert (await served.ask(**SHORT, priority=1)).status_code == 200
        await served.until(EventKind.PARKED)
        tasks.cancel_scope.cancel()
    scrape = await served.scrape()
    assert scrape.value("llamalane_num_preemptions_total", level="5") == 1
    assert scrape.value("llamalane_parks_by_reason_total", reason="displaced") == 1
    assert scrape.total("llamalane_parks_total") == 1
    assert scrape.value("llamalane_requests_ended_total", outcome="cancelled") == 1
    assert scrape.value("llamalane_request_success_total", finished_reason="abort") == 1
    assert scrape.value("llamalane_request_success_total", finished_reason="length") == 1
    assert scrape.value("llamalane_time_to_first_token_seconds_count", level="5") == 1, "it had begun"
    assert "5" not in {labels["level"] for labels in scrape.labels("llamalane_lane_steps_total") if "level" in labels}


async def test_a_full_queue_and_missed_deadlines_are_counted(served: Served) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: served.ask(**{**ENDLESS, "priority": 1}))
        await served.until(EventKind.STARTED)
        late = await served.ask(**SHORT, deadline=0.01)
        assert late.status_code == 504
        tasks.start_soon(lambda: served.ask(**SHORT))
        while (await served.scrape()).value("llamalane_num_requests_waiting", level="3") == 0:
            await anyio.lowlevel.checkpoint()
        assert (await served.ask(**SHORT)).status_code == 429
        tasks.cancel_scope.cancel()
    scrape = await served.scrape()
    assert scrape.value("llamalane_requests_rejected_total", reason="requests") == 1
    assert scrape.total("llamalane_deadlines_missed_total") == 1
    assert scrape.value("llamalane_http_requests_total", endpoint="/v1/completions", status="429") == 1
    assert scrape.value("llamalane_http_requests_total", endpoint="/v1/completions", status="504") == 1


async def test_no_label_grows_with_clients_tenants_or_paths(served: Served) -> None:
    await served.ask(**SHORT, user="somebody")
    await served.client.get("/v1/models/nobody-has-this")
    await served.client.get("/nowhere/at/all")
    scrape = await served.scrape()
    allowed = {
        *(MODEL, "level", "lane", "le", "state", "outcome", "finished_reason", "reason", "how", "what", "version"),
        *("endpoint", "status"),
    }
    for name in scrape.names:
        for labels in scrape.labels(name):
            assert labels.keys() <= allowed
            assert not {"somebody", "nobody-has-this"} & set(labels.values())
    endpoints = {labels["endpoint"] for labels in scrape.labels("llamalane_http_requests_total")}
    assert endpoints <= {"/v1/completions", "/v1/models/{model}", "/metrics", "none"}


async def test_the_other_format_can_be_asked_for(served: Served) -> None:
    await served.ask(**SHORT)
    answer = await served.client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_while_there_is_no_model_the_state_is_told(tiny_model: Path) -> None:
    app = create_app(EngineConfig(models=[ModelConfig(path=tiny_model)]))
    async with client_of(app) as client:
        assert (await client.get("/metrics")).status_code == 503, "its lifespan does not run"
    async with client_of(create_app(Engine(EngineConfig(models=[ModelConfig(path=tiny_model, name="t")])))) as client:
        scrape = Scrape((await client.get("/metrics")).text)
    assert scrape.value("llamalane_engine_state", state="new", model_name="t") == 1
    assert scrape.value("llamalane_build_info") == 1


async def test_two_apps_have_metrics_of_their_own() -> None:
    first, second = create_app(as_engine(ScriptedEngine())), create_app(as_engine(ScriptedEngine()))
    async with client_of(first) as client:
        await client.get("/health")
    async with client_of(second) as client:
        scrape = Scrape((await client.get("/metrics")).text)
    assert scrape.total("llamalane_http_requests_total", endpoint="/health") == 0
