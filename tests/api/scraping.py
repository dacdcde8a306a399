"""What `/metrics` says, as Prometheus would read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        """The type of each family, by its name."""
        self._samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append(sample)

    @property
    def names(self) -> frozenset[str]:
        """The names of all time series, as queries name them."""
        return frozenset(self._samples)

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """The labels of each time series of that name."""
        return [sample.labels for sample in self._samples.get(name, ())]

    def value(self, name: str, **labels: str) -> float:
        """The value of the one time series of that name with these labels, and perhaps others."""
        [sample] = self._matching(name, labels)
        return sample.value

    def total(self, name: str, **labels: str) -> float:
        """The sum of the time series of that name with these labels."""
        return sum(sample.value for sample in self._matching(name, labels))

    def _matching(self, name: str, labels: Mapping[str, str]) -> Iterator[Sample]:
        return (sample for sample in self._samples.get(name, ()) if labels.items() <= sample.labels.items())
