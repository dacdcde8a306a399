"""The table of throughput beside llama-server."""

from __future__ import annotations

from llamalane.bench.gpu.throughput import Round, throughput_markdown


def test_the_table_has_the_median_of_each_servers_rounds() -> None:
    rounds = [
        Round("llamalane", 8, 100.0, 0),
        Round("llama-server", 8, 90.0, 1),
        Round("llamalane", 8, 300.0, 0),
        Round("llama-server", 8, 80.0, 1),
        Round("llamalane", 8, 110.0, 0),
        Round("llama-server", 8, 85.0, 0),
    ]
    assert throughput_markdown(rounds).splitlines()[2:] == [
        "| 8 | llamalane | 110 | 3 | 0 |",
        "| 8 | llama-server | 85 | 3 | 2 |",
    ]
