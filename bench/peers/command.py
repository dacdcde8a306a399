"""The command `bench peers`: its options. What a measurement needs is imported when it runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from llamalane.bench.options import (
    BusyOk,
    JsonFile,
    KVCells,
    LlamaServer,
    Model,
    Places,
    Seed,
    Threads,
    needed_packages,
)
from llamalane.bench.peers.kinds import Arrivals, Peer, Traffic
from llamalane.errors import ConfigError, LlamalaneError

DEFAULT_PEERS = (Peer.LLAMALANE, Peer.XLLAMACPP)


def measure(
    model: Model = None,
    peer: Annotated[
        list[Peer] | None,
        typer.Option(help="A server to measure; may be repeated. The first one is compared with the others."),
    ] = None,
    llama_server: LlamaServer = None,
    examples_server: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Measure that server.py of llama-cpp-python's examples/server, too."),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=http://…", help="Measure the server that runs there, too; may be repeated."),
    ] = None,
    workload: Annotated[Traffic, typer.Option(help="What the clients ask for.")] = Traffic.FRESH,
    arrivals: Annotated[Arrivals, typer.Option(help="When they ask.")] = Arrivals.CLOSED,
    clients: Annotated[
        list[int] | None,
        typer.Option(help="Clients in a closed loop; may be repeated.", metavar="N", min=1, show_default="8 and 32"),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Requests/s with Poisson arrivals; may be repeated.", metavar="X", show_default=False),
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(
            help="The rate as a share of what the quickest server answers, which is measured first; may be repeated.",
            metavar="X",
            show_default="0.5, 0.8, 1.0",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each load is measured.", metavar="N", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="How long each time.", min=1)] = 30.0,
    warm_up: Annotated[float, typer.Option(help="Seconds under load that go before.", min=0)] = 10.0,
    places: Places = 8,
    threads: Threads = None,
    kv_cells: KVCells = 4096,
    queue: Annotated[
        int | None,
        typer.Option(help="How many requests may wait at llamalane.", metavar="N", min=1, show_default="its own"),
    ] = None,
    words: Annotated[
        int | None,
        typer.Option(help="Mean words in a prompt.", metavar="N", min=1, show_default="the workload's, 40 if fresh"),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Mean tokens in an answer.", metavar="N", min=1, show_default="the workload's, 48 if fresh"),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask for chat completions; short-chat always does.")] = False,
    slo_ttft: Annotated[
        float | None,
        typer.Option(metavar="S", help="For goodput: seconds in which a first token should come.", min=0),
    ] = None,
    slo_itl: Annotated[
        float | None, typer.Option(metavar="S", help="For goodput: mean seconds between a request's tokens.", min=0)
    ] = None,
    seed: Seed = None,
    json: JsonFile = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write JSON, Markdown, pictures, and one page of HTML there."),
    ] = None,
    busy_ok: BusyOk = False,
) -> None:
    """Compare llamalane with other servers, run in turn."""
    with needed_packages():
        from llamalane.bench import runs  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench.peers.runs import Wanted, compare_servers  # noqa: PLC0415
    failed = compare_servers(
        Wanted(
            setup=runs.setup(model, places, threads, kv_cells, queue=queue),
            peers=tuple(dict.fromkeys(peer or DEFAULT_PEERS)),
            llama_server=llama_server,
            examples_server=examples_server,
            urls=parse_urls(url or []),
            traffic=workload,
            words=words,
            tokens=tokens,
            chat=chat or workload is Traffic.SHORT_CHAT,
            arrivals=_checked_arrivals(arrivals, clients, rate, load),
            clients=tuple(clients or (8, 32)),
            rates=tuple(rate or ()),
            shares=tuple(load or (0.5, 0.8, 1.0)),
            rounds=rounds,
            seconds=seconds,
            warm_up=warm_up,
            slo_ttft=slo_ttft,
            slo_itl=slo_itl,
            seed=seed,
            busy_ok=busy_ok,
        ),
        json_file=json,
        out=out,
    )
    if failed:
        raise LlamalaneError(f"{failed} requests failed")


def parse_urls(texts: list[str]) -> dict[str, str]:
    """Return the URLs by their names, without `/v1` at the end; raises `ConfigError` for what is no such pair."""
    urls: dict[str, str] = {}
    for text in texts:
        name, equals, url = text.partition("=")
        if not equals or not name or not url.startswith("http://"):
            raise ConfigError(f"--url takes a name and an http URL, such as vllm=http://127.0.0.1:8000; got {text!r}")
        if name in urls or name in {peer.value for peer in Peer}:
            raise ConfigError(f"--url: the name {name!r} is given twice, or is that of a peer")
        urls[name] = url.rstrip("/").removesuffix("/v1")
    return urls


def _checked_arrivals(
    arrivals: Arrivals, clients: list[int] | None, rates: list[float] | None, shares: list[float] | None
) -> Arrivals:
    """Return how requests arrive; raises `ConfigError` for options that do not go together."""
    if arrivals is Arrivals.CLOSED and (rates or shares):
        raise ConfigError("--rate and --load are for --arrivals poisson")
    if arrivals is Arrivals.POISSON and clients:
        raise ConfigError("--clients is for --arrivals closed")
    if rates and shares:
        raise ConfigError("give either --rate or --load")
    for value in [*(rates or []), *(shares or [])]:
        if not 0 < value < math.inf:
            raise ConfigError(f"a rate or a load must be a number greater than 0; got {value}")
    return arrivals
