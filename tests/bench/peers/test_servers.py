"""Servers that are started for real, with a tiny model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from llamalane.bench.load import ClosedLoop, LoadResult
from llamalane.bench.machine import describe_machine
from llamalane.bench.peers.contestants import Contestant, LocalServer, RemoteServer
from llamalane.bench.peers.kinds import Arrivals, Peer, Setup, Traffic
from llamalane.bench.peers.measuring import compare
from llamalane.bench.peers.output import comparison_markdown
from llamalane.bench.peers.plan import ComparisonPlan, Load
from llamalane.bench.peers.starting import serve
from llamalane.bench.peers.traffic import make_source
from llamalane.bench.workload import Span, Workload
from llamalane.errors import ConfigError, LlamalaneError

SHORT = Workload(words=Span(2, 4), output_tokens=Span(4, 8))


def setup(model: Path, queue: int | None = None) -> Setup:
    return Setup(model=model, places=2, threads=1, cells=1024, queue=queue)


async def ask(contestant: Contestant, clients: int, requests: int, *, chat: bool = False) -> LoadResult:
    with contestant.serve() as server:
        target = contestant.target(server)
        if chat:
            target = type(target)(url=target.url, model=target.model, chat=True)
        return await ClosedLoop(target, SHORT, clients=clients, seed=1).run(requests=requests)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("chat", [False, True])
async def test_the_thread_pool_streams_every_answer(tiny_model: Path, chat: bool) -> None:
    result = await ask(LocalServer(Peer.THREAD_POOL, setup(tiny_model)), 3, 2, chat=chat)
    assert [record.error for record in result.records] == [None] * 6
    assert all(record.token_times for record in result.records)
    ends = sorted((record.token_times[0], record.token_times[-1]) for record in result.records)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends)), "one answer at a time"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_server_with_one_lock_cuts_no_stream(tiny_model: Path) -> None:
    pytest.importorskip("sse_starlette")
    pytest.importorskip("starlette_context")
    result = await ask(LocalServer(Peer.ONE_LOCK, setup(tiny_model)), 3, 2)
    assert [record.error for record in result.records] == [None] * 6
    assert all(record.token_times for record in result.records)


def test_a_prompt_that_does_not_fit_is_told_by_the_thread_pool(tiny_model: Path) -> None:
    with (
        serve(Peer.THREAD_POOL, setup(tiny_model)) as server,
        httpx.Client(base_url=server.url, trust_env=False) as client,
    ):
        long = client.post("/v1/completions", json={"prompt": "x" * 3000, "max_tokens": 1}).text
        short = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).text
    assert '"error"' in long
    assert '"error"' not in short
    assert long.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("peer", "what"),
    [(Peer.EXAMPLES_SERVER, r"needs the file server\.py"), (Peer.LLAMA_SERVER, "llama-server needs its executable")],
)
def test_servers_of_no_package_need_their_file(tiny_model: Path, peer: Peer, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        serve(peer, setup(tiny_model))


def executable(folder: Path, script: str) -> Path:
    program = folder / "llama-server"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_llama_server_gets_what_all_have_in_common(tiny_model: Path, tmp_path: Path) -> None:
    contestant = LocalServer(Peer.LLAMA_SERVER, setup(tiny_model), executable(tmp_path, 'echo "$@"; exit 3'))
    common = f"--model {tiny_model} .* --parallel 2 --ctx-size 1024 --threads 1 --threads-batch 1"
    with pytest.raises(LlamalaneError, match=rf"ended with code 3[\s\S]*{common}"), contestant.serve():
        pass


def test_llama_server_tells_its_version(tiny_model: Path, tmp_path: Path) -> None:
    program = executable(tmp_path, 'echo "load: nothing"; echo "version: 7 (abc)" >&2; echo "built with GNU 12" >&2')
    assert LocalServer(Peer.LLAMA_SERVER, setup(tiny_model), program).build() == "version: 7 (abc), built with GNU 12"


def test_what_is_no_program_cannot_be_measured(tiny_model: Path) -> None:
    with pytest.raises(LlamalaneError, match="llama-server cannot be measured"):
        LocalServer(Peer.LLAMA_SERVER, setup(tiny_model), tiny_model).build()


def plan_for(model: Path, contestants: tuple[Contestant, ...], **options: object) -> ComparisonPlan:
    values: dict[str, object] = {
        "setup": setup(model),
        "source": SHORT,
        "chat": False,
        "loads": (Load(Arrivals.CLOSED, 3),),
        "rounds": 2,
        "seconds": 0.5,
        "warm_up": 0.1,
        "seed": 1,
        **options,
    }
    return ComparisonPlan(contestants=contestants, **values)  # type: ignore[arg-type]


def test_servers_here_and_elsewhere_take_turns(tiny_model: Path) -> None:
    told: list[str] = []
    with serve(Peer.THREAD_POOL, setup(tiny_model)) as running:
        here = LocalServer(Peer.THREAD_POOL, setup(tiny_model))
        elsewhere = RemoteServer("elsewhere", running.url)
        result = compare(plan_for(tiny_model, (here, elsewhere)), describe_machine(), told.append)
    assert [one.contestant for one in result.measurements] == ["thread-pool", "elsewhere", "elsewhere", "thread-pool"]
    assert len(told) == 4
    assert result.errors == 0
    assert result.builds.keys() == {"thread-pool"}
    for one in result.measurements:
        assert one.tokens_per_second > 0
        assert (one.memory is None) is (one.contestant == "elsewhere")
        if one.memory is not None:
            assert min(one.memory.start, one.memory.middle, one.memory.end) > 1 << 20
    assert "| 3 clients | elsewhere | output tokens/s |" in comparison_markdown(result)


def test_arrivals_come_at_shares_of_what_the_quickest_server_answers(tiny_model: Path) -> None:
    contestant = LocalServer(Peer.THREAD_POOL, setup(tiny_model))
    told: list[str] = []
    plan = plan_for(tiny_model, (contestant,), loads=(), shares=(0.2, 0.4), rounds=1)
    result = compare(plan, describe_machine(), told.append)
    assert told[0].startswith("saturated, thread-pool: ")
    low, high = result.loads
    assert low.arrivals is Arrivals.POISSON
    assert high.amount == pytest.approx(2 * low.amount)
    assert result.errors == 0


def test_classes_are_measured_by_themselves_and_refused_clients_come_again(tiny_model: Path) -> None:
    bounded = LocalServer(Peer.LLAMALANE, setup(tiny_model, queue=1))
    source = make_source(Traffic.MIXED, 4, 8)
    plan = plan_for(
        tiny_model,
        (bounded,),
        setup=bounded.setup,
        source=source,
        loads=(Load(Arrivals.CLOSED, 12),),
        rounds=1,
        warm_up=0.0,
        seconds=1.5,
    )
    (one,) = compare(plan, describe_machine(), lambda line: None).measurements
    assert one.summary.rejections > 0
    assert one.summary.errors == {}
    assert one.summary.time_to_refusal is not None
    assert one.classes.keys() == {"interactive", "normal", "batch"}
    assert sum(each.requests for each in one.classes.values()) == one.summary.requests
