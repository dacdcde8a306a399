"""The benchmarks' commands: their options. What a measurement needs is imported when it runs."""

from __future__ import annotations

import secrets
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import anyio
import typer

from llamalane.bench.candidates import Candidate
from llamalane.bench.options import (
    BusyOk,
    JsonFile,
    KVCells,
    Model,
    Places,
    Seed,
    Threads,
    Tokens,
    Words,
    needed_packages,
)
from llamalane.bench.peers import command as peers
from llamalane.bench.promises import Promise
from llamalane.bench.simulator import command as simulator
from llamalane.errors import LlamalaneError

app = typer.Typer(
    name="bench",
    help="Measure llamalane on this machine. Nothing else should run meanwhile.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.command("peers")(peers.measure)


@app.command()
def urgent(
    model: Model = None,
    server: Annotated[Literal["llamalane", "xllamacpp"], typer.Option(help="What is measured.")] = "llamalane",
    clients: Annotated[int, typer.Option(help="Clients at level 5, in a closed loop.", metavar="N", min=1)] = 24,
    tries: Annotated[int, typer.Option(help="Urgent requests, idle and under load.", metavar="N", min=1)] = 15,
    urgent_words: Annotated[int, typer.Option(help="Words in an urgent prompt.", metavar="N", min=1)] = 12,
    urgent_tokens: Annotated[int, typer.Option(help="Tokens in its answer.", metavar="N", min=1)] = 16,
    reserve: Annotated[int, typer.Option(help="Places kept for urgent requests.", metavar="N", min=0)] = 1,
    places: Places = 8,
    threads: Threads = None,
    kv_cells: KVCells = 4096,
    words: Words = 40,
    tokens: Tokens = 48,
    seed: Seed = None,
    json: JsonFile = None,
    busy_ok: BusyOk = False,
) -> None:
    """Measure an urgent request's time to its first token, idle and under load at level 5."""
    with needed_packages():
        from llamalane.bench import runs  # noqa: PLC0415  (loads what only a measurement needs)
    runs.measure_urgent_requests(
        server=server,
        setup=runs.setup(model, places, threads, kv_cells),
        background=runs.workload(words, tokens),
        urgent=runs.exact_workload(urgent_words, urgent_tokens),
        clients=clients,
        tries=tries,
        reserve=reserve,
        seed=seed,
        json_file=json,
        busy_ok=busy_ok,
    )


@app.command()
def neighbour(
    model: Model = None,
    llama_server: Annotated[
        Path | None, typer.Option(metavar="PATH", help="llama-server's executable.", show_default="that of xllamacpp")
    ] = None,
    clients: Annotated[int, typer.Option(help="Clients in a closed loop.", metavar="N", min=1)] = 16,
    rounds: Annotated[int, typer.Option(help="How often each server is measured.", metavar="N", min=1)] = 4,
    seconds: Annotated[float, typer.Option(help="How long, without and with the busy process.", min=1)] = 12.0,
    places: Places = 8,
    threads: Threads = None,
    kv_cells: KVCells = 4096,
    words: Words = 40,
    tokens: Tokens = 48,
    seed: Seed = None,
    json: JsonFile = None,
    busy_ok: BusyOk = False,
) -> None:
    """Compare with llama-server what one busy process on the same cores leaves of the throughput."""
    with needed_packages():
        from llamalane.bench import runs  # noqa: PLC0415  (loads what only a measurement needs)
    failed = runs.measure_beside_a_neighbour(
        setup=runs.setup(model, places, threads, kv_cells),
        llama_server=llama_server,
        workload=runs.workload(words, tokens),
        clients=clients,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        json_file=json,
        busy_ok=busy_ok,
    )
    if failed:
        raise LlamalaneError(f"{failed} requests failed")


app.command("simulator")(simulator.measure)


@app.command()
def promises(
    model: Model = None,
    what: Annotated[
        list[Promise] | None,
        typer.Option("--what", help="May be repeated.", show_default="all"),
    ] = None,
    tries: Annotated[int, typer.Option(help="Urgent requests, idle and under load.", metavar="N", min=10)] = 100,
    seconds: Annotated[float, typer.Option(help="How long the overload lasts.", min=10)] = 120.0,
    seed: Annotated[int, typer.Option(help="Chooses the prompts.", metavar="N", min=0)] = 1,
) -> None:
    """Measure what the scheduler promises, on an engine in this process."""
    with needed_packages():
        from llamalane.bench.promises import command  # noqa: PLC0415  (loads what only a measurement needs)
    command.run(model, what or list(Promise), tries=tries, seconds=seconds, seed=seed)


@app.command()
def refusals(
    model: Model = None,
    count: Annotated[int, typer.Option(help="How many refusals of each kind.", metavar="N", min=100)] = 5000,
    queue: Annotated[int, typer.Option(help="How many requests wait meanwhile.", metavar="N", min=1)] = 64,
    busy_ok: BusyOk = False,
) -> None:
    """Measure what a refusal over HTTP costs the server's event loop, while it does nothing else."""
    with needed_packages():
        from llamalane.bench import refusal_costs as measuring  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench import runs  # noqa: PLC0415
    setup = runs.setup(model, 8, None, 4096, queue=queue)
    runs.quiet_machine(busy_ok)
    plan = measuring.RefusalPlan(setup=setup, refusals=count)
    print(measuring.refusals_markdown(plan, measuring.measure_refusals(plan, _tell)))


@app.command()
def queue() -> None:
    """Measure what the waiting queue costs, with up to a million requests in it."""
    with needed_packages():
        from llamalane.bench.queue_costs import measure_queue, queue_markdown  # noqa: PLC0415
    print(queue_markdown(measure_queue()))


@app.command()
def prefixes() -> None:
    """Measure what the prefix tree costs an admitted request, by how large the tree is."""
    with needed_packages():
        from llamalane.bench.prefix_costs import measure_prefixes, prefixes_markdown  # noqa: PLC0415
    print(prefixes_markdown(measure_prefixes()))


@app.command()
def imports(
    rounds: Annotated[int, typer.Option(help="How often each import is measured.", metavar="N", min=1)] = 10,
) -> None:
    """Measure what importing llamalane costs, in new processes."""
    with needed_packages():
        from llamalane.bench.import_costs import imports_markdown, measure_imports  # noqa: PLC0415
    print(imports_markdown(measure_imports(rounds=rounds, tell=_tell)))


@app.command()
def fanout(
    model: Model = None,
    rounds: Annotated[int, typer.Option(help="How often each server is measured.", metavar="N", min=1)] = 4,
    documents: Annotated[int, typer.Option(help="New documents in each round.", metavar="N", min=1)] = 3,
    questions: Annotated[int, typer.Option(help="Questions about each, at once.", metavar="N", min=1)] = 8,
    places: Places = 8,
    threads: Threads = None,
    kv_cells: KVCells = 4096,
    seed: Seed = None,
) -> None:
    """Compare many questions about one document with llama-server, new ones and such as come again."""
    with needed_packages():
        from llamalane.bench import fanout as measuring  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench import runs  # noqa: PLC0415
    plan = measuring.FanoutPlan(
        setup=runs.setup(model, places, threads, kv_cells),
        documents=documents,
        questions=questions,
        rounds=rounds,
        seed=secrets.randbits(32) if seed is None else seed,
    )
    print(measuring.fanout_markdown(measuring.measure_fanout(plan, _tell)))


@app.command()
def layouts(
    model: Model = None,
    rounds: Annotated[int, typer.Option(help="How often each layout is measured.", metavar="N", min=1)] = 3,
    situation: Annotated[
        list[int] | None,
        typer.Option(help="Which of the situations; may be repeated.", metavar="N", min=1, max=4, show_default="all"),
    ] = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Chooses the prompts.", metavar="N", min=0)] = 1,
) -> None:
    """Compare the layouts of KV memory, on engines in this process."""
    with needed_packages():
        from llamalane.bench import layouts as measuring  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench.model import find_model  # noqa: PLC0415
        from llamalane.streams.cores import available_cores  # noqa: PLC0415
    path, count = find_model(model), threads or len(available_cores())
    chosen = [measuring.SITUATIONS[number - 1] for number in situation or (1, 2, 3, 4)]
    measure = partial(measuring.measure_layouts, path, threads=count, rounds=rounds, seed=seed, tell=_tell)
    comparisons = anyio.run(partial(measure, situations=chosen))
    print(measuring.layouts_markdown(comparisons))


@app.command()
def grammar(
    model: Model = None,
    rounds: Annotated[int, typer.Option(help="How often each number of rows is measured.", metavar="N", min=1)] = 5,
) -> None:
    """Measure the tokens per second of 8 rows of which 0, 4 and 8 follow a JSON schema, in turn."""
    with needed_packages():
        from llamalane.bench.grammar_costs import grammars_markdown, measure_grammars  # noqa: PLC0415
        from llamalane.bench.model import find_model  # noqa: PLC0415
    measure = partial(measure_grammars, find_model(model), rounds=rounds, tell=_tell)
    print(grammars_markdown(anyio.run(measure)))


@app.command()
def floor(
    model: Model = None,
    sequences: Annotated[
        list[int] | None,
        typer.Option(help="So many at once; may be repeated.", metavar="N", min=1, max=256, show_default="1, 2, … 64"),
    ] = None,
    chunk: Annotated[
        list[int] | None,
        typer.Option(
            help="Prompt tokens in a step of the floor; may be repeated.", metavar="N", show_default="512, 64"
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each is measured.", metavar="N", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="How long each time.", min=1)] = 8.0,
    warm_up: Annotated[float, typer.Option(help="Seconds under load that go before.", min=0)] = 2.0,
    threads: Threads = None,
    words: Words = 40,
    tokens: Tokens = 48,
    http: Annotated[bool, typer.Option(help="Measure the server, too, with clients who stream.")] = True,
    split: Annotated[bool, typer.Option(help="Tell at the end, with probes, where the time goes.")] = True,
    seed: Annotated[int, typer.Option(help="Chooses the prompts.", metavar="N", min=0)] = 1,
    json: JsonFile = None,
) -> None:
    """Compare the engine, here and over HTTP, with the best that the machine can do: llama.cpp in a bare loop."""
    with needed_packages():
        from llamalane.bench import runs  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench.floor.command import FloorPlan, measure  # noqa: PLC0415
    setup = runs.setup(model, 1, threads, 256)
    plan = FloorPlan(
        model=setup.model,
        threads=setup.threads,
        workload=runs.workload(words, tokens),
        sequences=tuple(sequences or (1, 2, 4, 8, 16, 32, 64)),
        chunks=tuple(chunk or (512, 64)),
        http=http,
        split=split,
        rounds=rounds,
        seconds=seconds,
        warm_up=warm_up,
        seed=seed,
    )
    measure(plan, json)


@app.command()
def steps(
    model: Model = None,
    sequences: Annotated[
        list[int] | None,
        typer.Option(help="So many at once; may be repeated.", metavar="N", min=1, max=256, show_default="1, 2, … 64"),
    ] = None,
    waiting: Annotated[
        list[int] | None,
        typer.Option(
            help="So many requests wait behind 16 sequences; may be repeated.",
            metavar="N",
            min=1,
            show_default="1,000, 10,000, 100,000",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each is measured.", metavar="N", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="How long each time.", min=1)] = 4.0,
    warm_up: Annotated[float, typer.Option(help="Seconds under load that go before.", min=0)] = 2.0,
    threads: Threads = None,
    json: JsonFile = None,
    busy_ok: BusyOk = False,
) -> None:
    """Measure what a step costs beside llama.cpp's work, by sequences and by requests that wait."""
    with needed_packages():
        from llamalane.bench import runs  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench import step_costs as measuring  # noqa: PLC0415
        from llamalane.bench.report import to_json  # noqa: PLC0415
    setup = runs.setup(model, 1, threads, 256)
    runs.quiet_machine(busy_ok)
    situations = [measuring.Situation(count) for count in sequences or (1, 2, 4, 8, 16, 32, 64)]
    situations += [measuring.Situation(measuring.BUSY, count) for count in waiting or (1_000, 10_000, 100_000)]
    plan = measuring.StepPlan(
        model=setup.model,
        threads=setup.threads,
        situations=tuple(situations),
        rounds=rounds,
        seconds=seconds,
        warm_up=warm_up,
    )
    measured = anyio.run(measuring.measure_steps, plan, _tell)
    print(measuring.steps_markdown(plan, measured))
    if json is not None:
        json.write_text(to_json(measured))


@app.command()
def streaming(
    model: Model = None,
    streams: Annotated[int, typer.Option(help="Clients who stream at once.", metavar="N", min=1, max=256)] = 64,
    seconds: Annotated[float, typer.Option(help="How long it is measured, twice.", min=1)] = 8.0,
    warm_up: Annotated[float, typer.Option(help="Seconds under load that go before.", min=0)] = 3.0,
    threads: Threads = None,
    words: Words = 12,
    tokens: Tokens = 160,
    seed: Annotated[int, typer.Option(help="Chooses the prompts.", metavar="N", min=0)] = 1,
    json: JsonFile = None,
) -> None:
    """Measure what it costs to encode and send the tokens of many streams. A tiny model makes most of them."""
    with needed_packages():
        from llamalane.bench import runs  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench.machine import describe_machine  # noqa: PLC0415
        from llamalane.bench.report import to_json  # noqa: PLC0415
        from llamalane.bench.streaming import measuring  # noqa: PLC0415
    setup = runs.setup(model, 1, threads, 256)
    plan = measuring.StreamingPlan(
        model=setup.model,
        threads=setup.threads,
        workload=runs.workload(words, tokens),
        streams=streams,
        seconds=seconds,
        warm_up=warm_up,
        seed=seed,
    )
    report = anyio.run(measuring.measure_streaming, plan, describe_machine(), _tell)
    print(measuring.streaming_markdown(report))
    if json is not None:
        json.write_text(to_json(report))


@app.command()
def soak(
    model: Model = None,
    embedder: Annotated[
        Path | None, typer.Option(help="A model that embeds, to be served beside it.", metavar="FILE.gguf")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long.", min=5)] = 600.0,
    connections: Annotated[int, typer.Option(help="Clients at once.", metavar="N", min=1)] = 200,
    vanishing: Annotated[float, typer.Option(help="The share of them that vanishes.", min=0, max=1)] = 0.5,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Chooses what the clients do.", metavar="N", min=0)] = 1,
    json: JsonFile = None,
) -> None:
    """Overload a server with clients of whom half vanish, and look for what it has lost in the end."""
    with needed_packages():
        from llamalane.bench.model import find_model  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench.report import to_json  # noqa: PLC0415
        from llamalane.bench.soak import measuring  # noqa: PLC0415
    plan = measuring.SoakPlan(
        model=find_model(model),
        embedder=None if embedder is None else find_model(embedder),
        threads=threads or 1,
        seconds=seconds,
        connections=connections,
        vanishing=vanishing,
        seed=seed,
    )
    report = anyio.run(measuring.soak, plan, _tell)
    print(measuring.soak_markdown(report))
    if json is not None:
        json.write_text(to_json(report))
    if report.problems:
        raise LlamalaneError(f"{len(report.problems)} problems were found")


@app.command()
def sampling(
    model: Model = None,
    rounds: Annotated[int, typer.Option(help="How often each chain of samplers is measured.", metavar="N", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Chooses the prompts.", metavar="N", min=0)] = 1,
    json: JsonFile = None,
) -> None:
    """Measure how long it takes to choose a token, beside llama.cpp's own samplers, run in turn."""
    with needed_packages():
        from llamalane.bench import sampling_costs as measuring  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench.model import find_model  # noqa: PLC0415
        from llamalane.bench.report import to_json  # noqa: PLC0415
    costs = measuring.measure_sampling(find_model(model), rounds=rounds, seed=seed, tell=_tell)
    print(measuring.sampling_markdown(costs))
    if json is not None:
        json.write_text(to_json(costs))


@app.command()
def candidates(
    model: Model = None,
    only: Annotated[
        list[Candidate] | None,
        typer.Option("--only", help="May be repeated.", show_default="all"),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often everything is measured.", metavar="N", min=1)] = 5,
    python: Annotated[
        Path | None,
        typer.Option(
            help="Another interpreter, for free-threading: one that has NumPy, anyio, llama-cpp-python and llamalane.",
            metavar="PATH",
        ),
    ] = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Chooses prompts, tokens and orders.", metavar="N", min=0)] = 1,
    json: JsonFile = None,
    busy_ok: BusyOk = False,
) -> None:
    """Measure what might make llamalane quicker, each candidate in turn with what is done now."""
    with needed_packages():
        from llamalane.bench.candidates import command  # noqa: PLC0415  (loads what only a measurement needs)
    plan = command.plan_for(model, threads=threads, rounds=rounds, seed=seed, python=python)
    command.measure(plan, command.chosen_candidates(only, python), json, busy_ok=busy_ok)


@app.command()
def handover(
    model: Model = None,
    clients: Annotated[int, typer.Option(help="Clients with short prompts.", metavar="N", min=1)] = 6,
    long_clients: Annotated[int, typer.Option(help="Clients with long prompts.", metavar="N", min=1)] = 1,
    seconds: Annotated[float, typer.Option(help="How long each arrangement is measured.", min=1)] = 60.0,
    warm_up: Annotated[float, typer.Option(help="Seconds under load that go before.", min=0)] = 15.0,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Chooses the prompts.", metavar="N", min=0)] = 1,
) -> None:
    """Measure what it brings to compute prompts on one lane and their outputs on another."""
    with needed_packages():
        from llamalane.bench import handover as measuring  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench.model import find_model  # noqa: PLC0415
        from llamalane.streams.cores import available_cores  # noqa: PLC0415
    plan = measuring.HandoverPlan(
        model=find_model(model),
        threads=threads or len(available_cores()),
        clients=clients,
        long_clients=long_clients,
        seconds=seconds,
        warm_up=warm_up,
        seed=seed,
    )
    results = [(each, anyio.run(measuring.measure_handover, plan, each, _tell)) for each in measuring.Arrangement]
    print(measuring.handover_markdown(plan, results))


@app.command()
def lookup(
    model: Model = None,
    draft_tokens: Annotated[int, typer.Option(help="The most tokens of a draft.", metavar="N", min=1, max=16)] = 8,
    sequences: Annotated[
        list[int] | None,
        typer.Option(help="So many at once; may be repeated.", metavar="N", min=1, max=16, show_default="1, 2"),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of an output.", metavar="N", min=2, max=512)] = 96,
    rounds: Annotated[int, typer.Option(help="How often each is measured.", metavar="N", min=1)] = 5,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Chooses the texts.", metavar="N", min=0)] = 1,
    json: JsonFile = None,
    busy_ok: BusyOk = False,
) -> None:
    """Measure what drafts bring for outputs that repeat their prompts, and what they cost for others."""
    with needed_packages():
        from llamalane.bench import lookup as measuring  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench import runs  # noqa: PLC0415
        from llamalane.bench.report import to_json  # noqa: PLC0415
    setup = runs.setup(model, 1, threads, 256)
    runs.quiet_machine(busy_ok)
    plan = measuring.LookupPlan(
        model=setup.model,
        threads=setup.threads,
        draft_tokens=draft_tokens,
        counts=tuple(sequences or (1, 2)),
        tokens=tokens,
        rounds=rounds,
        seed=seed,
    )
    gains = anyio.run(measuring.measure_lookup, plan, _tell)
    print(measuring.lookup_markdown(plan, gains))
    if json is not None:
        json.write_text(to_json(gains))


@app.command()
def guard(
    model: Model = None,
    repeats: Annotated[int, typer.Option(help="How often everything is measured.", metavar="N", min=2)] = 5,
    results: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where results are.", show_default="bench/results of the checkout"),
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Save the result, for later ones to be compared with.")] = False,
    busy_ok: BusyOk = False,
) -> None:
    """Compare what everything costs with the last saved result; ends with code 1 if something became slower."""
    with needed_packages():
        from llamalane.bench.guard import command  # noqa: PLC0415  (loads what only a measurement needs)
        from llamalane.bench.guard.result import RESULTS  # noqa: PLC0415
    if command.guard(model, repeats=repeats, folder=results or RESULTS, keep=save, busy_ok=busy_ok):
        raise typer.Exit(1)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
