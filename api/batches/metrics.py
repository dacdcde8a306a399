"""What Prometheus is told of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llamalane.api.batches.records import BatchStatus
from llamalane.api.batches.service import Batches
from llamalane.api.metric_families import PREFIX

_OUTCOMES = ("completed", "failed", "expired", "cancelled")


class BatchCollector(Collector):
    """Tells of batches by status, and of items by outcome, at the moment of asking; nothing where they are off."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def describe(self) -> Iterable[Metric]:
        """Return nothing: there may be no metrics."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of this moment."""
        if self._batches.opened is None:
            return
        store, runner = self._batches.opened
        statuses = GaugeMetricFamily(f"{PREFIX}batches", "Batches that are remembered, by status.", labels=["status"])
        for status in BatchStatus:
            statuses.add_metric([status.value], store.statuses[status])
        yield statuses
        help_text = "Items of batches since the start, by what came of them."
        items = CounterMetricFamily(f"{PREFIX}batch_items", help_text, labels=["outcome"])
        for outcome in _OUTCOMES:
            items.add_metric([outcome], runner.outcomes[outcome])
        yield items
