"""The measurement of lanes for prompts, on the tiny model and for moments only."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamalane.bench.handover import (
    LONG_OUTPUT,
    Arrangement,
    HandoverPlan,
    HandoverResult,
    configuration,
    handover_markdown,
    measure_handover,
)
from llamalane.scheduler import assembly
from llamalane.streams.cores import available_cores

MODEL = Path("model.gguf")


def test_all_arrangements_have_the_same_threads_and_cells() -> None:
    plan = HandoverPlan(model=MODEL, threads=8)
    configs = {arrangement: configuration(plan, arrangement) for arrangement in Arrangement}
    assert {config.kv.budget for config in configs.values()} == {configs[Arrangement.ONE].kv.budget}
    assert {sum(lane.threads or 0 for lane in config.streams.lanes) for config in configs.values()} == {8}
    assert len(configs[Arrangement.ONE].streams.lanes) == 1
    for arrangement in (Arrangement.NEVER, Arrangement.AUTO, Arrangement.ALWAYS):
        config = configs[arrangement]
        assert [lane.role for lane in config.streams.lanes] == ["prefill", "decode"]
        assert arrangement.value.endswith(f": {config.scheduler.handover}")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("arrangement", [Arrangement.ONE, Arrangement.ALWAYS])
async def test_an_arrangement_is_measured_under_load(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, arrangement: Arrangement
) -> None:
    cores = available_cores()
    monkeypatch.setattr(assembly, "available_cores", lambda: (cores * 2)[: max(2, len(cores))])
    plan = HandoverPlan(model=tiny_model, threads=2, clients=2, output_tokens=16, seconds=1.0, warm_up=0.2)
    told: list[str] = []
    result = await measure_handover(plan, arrangement, told.append)
    assert len(told) == 1
    assert result.seconds >= 1.0
    assert result.prompts > 0
    assert result.tokens > result.prompts * LONG_OUTPUT
    assert all(seconds > 0 for seconds in (*result.gaps, *result.first))
    assert (result.handovers > 0) is (arrangement is Arrangement.ALWAYS)


def test_each_arrangement_has_its_line() -> None:
    result = HandoverResult(
        gaps=[0.01, 0.02, 0.03], first=[1.0, 2.0], tokens=600, prompts=12, handovers=3, seconds=60.0
    )
    table = handover_markdown(HandoverPlan(model=MODEL, threads=2), [(Arrangement.AUTO, result)]).splitlines()
    assert table[4] == "| two lanes, handover: auto | 20 / 30 / 30 | 2.00 / 2.00 | 10.0 | 12.0 | 3 |"
