"""The dashboard, the alerts and the list of metrics in the documentation ask for what `/metrics` really has."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from llamalane.api import ApiConfig, create_app, lifespan_of
from llamalane.api.config import BatchesConfig
from llamalane.scheduler import Engine, EngineConfig, KVConfig, LaneConfig, ModelConfig, StreamsConfig
from tests.api.asgi import client_of
from tests.api.scraping import Scrape

pytestmark = pytest.mark.anyio

DOCS = Path(__file__).parents[2] / "docs"
TARGET_LABELS = {"instance", "job"}
"""What Prometheus adds to what it scrapes."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def scrape(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Scrape]:
    """What a server tells that keeps prompts and batches on disk too, after requests of all levels."""
    config = EngineConfig(
        models=[ModelConfig(path=tiny_model, name="tiny")],
        streams=StreamsConfig(lanes=[LaneConfig(name="left", threads=1), LaneConfig(name="right", threads=1)]),
        kv=KVConfig(disk=tmp_path_factory.mktemp("prompts")),
    )
    api = ApiConfig(batches=BatchesConfig(folder=tmp_path_factory.mktemp("batches")))
    async with Engine(config) as engine:
        app = create_app(engine, api=api)
        async with lifespan_of(app)(app), client_of(app) as client:
            for level in range(1, 6):
                body = {"prompt": "x", "max_tokens": 3, "ignore_eos": True, "priority": level}
                assert (await client.post("/v1/completions", json=body)).status_code == 200
            yield Scrape((await client.get("/metrics")).text)


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())
    return found


def targets() -> Iterator[tuple[str, str]]:
    """Every query of the dashboard, with its variables replaced, and what its legend shows."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query = re.sub(r"\$(model|level|lane|instance)", ".*", target["expr"]).replace("$__rate_interval", "5m")
            yield query, target["legendFormat"]


def alerts() -> list[dict[str, Any]]:
    [block] = [
        found
        for found in re.findall(r"```yaml\n(.*?)```", (DOCS / "operating.md").read_text(), re.DOTALL)
        if found.startswith("groups:")
    ]
    rules: list[dict[str, Any]] = [rule for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]
    return rules


def selectors(expression: promql_parser.Expr) -> Iterator[promql_parser.VectorSelector]:
    """Every time series that a query asks for."""
    match expression:
        case promql_parser.VectorSelector():
            yield expression
        case promql_parser.MatrixSelector():
            yield expression.vector_selector
        case promql_parser.BinaryExpr():
            yield from selectors(expression.lhs)
            yield from selectors(expression.rhs)
        case promql_parser.Call():
            for argument in expression.args:
                yield from selectors(argument)
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr():
            yield from selectors(expression.expr)
        case promql_parser.NumberLiteral():
            return
        case _:
            raise AssertionError(f"the test does not know {expression}")


def labels_of(query: str) -> set[str]:
    """Every label that a query groups by."""
    groups = re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", query)
    return {label.strip() for group in groups for label in group.split(",")}


def check(query: str, shown: set[str], scrape: Scrape) -> None:
    """Check a query's names and labels, and the labels `shown` of its result, against what is there."""
    found = list(selectors(promql_parser.parse(query)))
    assert found
    grouped = labels_of(query)
    for selector in found:
        series = scrape.labels(selector.name or "")
        assert series, f"{selector.name} is not there"
        known = series[0].keys() | TARGET_LABELS
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked | grouped <= known, f"{selector.name} has no label {(asked | grouped) - known}"
        for matcher in selector.matchers.matchers:
            if matcher.op is promql_parser.MatchOp.Equal:
                assert matcher.value in {labels[matcher.name] for labels in series} | {"500"}
    assert shown <= (grouped or TARGET_LABELS | {"lane"}), f"{query} does not give {shown - grouped}"


def test_every_query_of_the_dashboard_finds_what_it_asks_for(scrape: Scrape) -> None:
    queries = list(targets())
    assert len(queries) > 40
    for query, legend in queries:
        check(query, set(re.findall(r"\{\{(\w+)\}\}", legend)) - {"le"}, scrape)


def test_the_dashboards_variables_find_what_can_be_chosen(scrape: Scrape) -> None:
    variables = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    assert variables.pop("datasource")["type"] == "datasource"
    assert variables.keys() == {"instance", "model", "level", "lane"}
    chosen: dict[str, set[str]] = {}
    for name, variable in variables.items():
        assert variable["query"]["query"] == variable["definition"]
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
        assert scrape.labels(metric)
        if label not in TARGET_LABELS:
            chosen[name] = {labels[label] for labels in scrape.labels(metric)}
    assert chosen == {"model": {"tiny"}, "level": set("12345"), "lane": {"left", "right"}}


def test_the_dashboard_can_be_imported() -> None:
    found = dashboard()
    assert found["schemaVersion"] >= 38
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (column, line)
            for column in range(place["x"], place["x"] + place["w"])
            for line in range(place["y"], place["y"] + place["h"])
        }
        assert max(column for column, _ in cells) < 24
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["description"]
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_every_alert_asks_for_what_is_there(scrape: Scrape) -> None:
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        check(rule["expr"], shown, scrape)


def test_every_metric_is_in_the_documentation_and_every_one_there_is_real(scrape: Scrape) -> None:
    told = set(re.findall(r"`(llamalane_\w+)`", (DOCS / "observability.md").read_text()))
    ours = {name for name in scrape.kinds if name.startswith("llamalane_")}
    known = {f"{name}_info" if scrape.kinds[name] == "info" else name for name in ours}
    assert told - {"llamalane_"} == known


def test_metrics_that_are_named_elsewhere_are_real(scrape: Scrape) -> None:
    for file in (*DOCS.glob("*.md"), DOCS.parent / "README.md"):
        for name in re.findall(r"`(llamalane_[a-z0-9_]+)`", file.read_text()):
            kinds: Mapping[str, str] = scrape.kinds
            assert name in kinds or name in scrape.names or name == "llamalane_", f"{file.name} names {name}"
