"""Many questions about one document at once, on llamalane and on llama-server, and the same documents again later."""

from __future__ import annotations

import enum
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import anyio
import yaml

from llamalane.bench.exchange import Recording, Target, exchange
from llamalane.bench.peers.builds import build_of
from llamalane.bench.peers.kinds import Peer, Setup
from llamalane.bench.peers.starting import serve, serve_config
from llamalane.bench.reading import Record, read
from llamalane.bench.server import Server
from llamalane.bench.workload import Question, Span, Workload
from llamalane.errors import LlamalaneError


class Contender(enum.Enum):
    """A server that is measured."""

    PAGED = "llamalane, paged"
    PARTITIONED = "llamalane, partitioned"
    XLLAMACPP = "xllamacpp"

    @property
    def peer(self) -> Peer:
        """Which program it is."""
        return Peer.XLLAMACPP if self is Contender.XLLAMACPP else Peer.LLAMALANE


OURS = (Contender.PAGED, Contender.PARTITIONED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutPlan:
    """What is measured.

    Attributes:
        setup: the servers.
        documents: new documents in each round, one after the other.
        questions: how many requests each of them gets at once.
        rounds: how often all servers are measured, in turn.
        seed: chooses the texts; each round has its own, the same for all servers.
        document_words, question_words, output_tokens: how long each is.
    """

    setup: Setup
    documents: int
    questions: int
    rounds: int
    seed: int
    document_words: int = 350
    question_words: int = 10
    output_tokens: int = 32


@dataclass(frozen=True, slots=True)
class Pass:
    """All documents with all their questions, once: the seconds together, and the share of prompt tokens cached."""

    seconds: float
    cached: float


@dataclass(frozen=True, slots=True)
class Round:
    """A server in one round: the documents when they were new, and when others had taken their places meanwhile."""

    cold: Pass
    repeated: Pass


@dataclass(slots=True, kw_only=True)
class FanoutResult:
    """Every round of each server, and what each program's llama.cpp was built with."""

    plan: FanoutPlan
    builds: Mapping[str, str]
    rounds: dict[Contender, list[Round]] = field(default_factory=lambda: {contender: [] for contender in Contender})

    def ratios(self, contender: Contender, part: Callable[[Round], Pass]) -> list[float]:
        """Return for each round how many times as long as a llamalane the peer took for a part of it."""
        pairs = zip(self.rounds[contender], self.rounds[Contender.XLLAMACPP], strict=True)
        return [part(theirs).seconds / part(ours).seconds for ours, theirs in pairs]


def measure_fanout(plan: FanoutPlan, tell: Callable[[str], None]) -> FanoutResult:
    """Carry out `plan`, with all servers up and one of them at work; `tell` hears of each measurement.

    Raises `LlamalaneError` when a request fails, or its answer has another length.
    """
    result = FanoutResult(plan=plan, builds={peer.value: build_of(peer) for peer in (Peer.LLAMALANE, Peer.XLLAMACPP)})
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        targets = {
            contender: stack.enter_context(_serve(contender, plan.setup, Path(folder))).target()
            for contender in Contender
        }
        order = list(Contender)
        for number in range(1, plan.rounds + 1):
            texts = _Texts(plan, number)
            for contender in order:
                one = anyio.run(_measure, targets[contender], texts)
                result.rounds[contender].append(one)
                tell(f"round {number}, {contender.value}: {one.cold.seconds:.2f} s, then {one.repeated.seconds:.2f} s")
            order.append(order.pop(0))
    return result


def configuration(setup: Setup, contender: Contender) -> dict[str, object]:
    """Return llamalane's configuration for a layout, all else as it is by default."""
    return {
        "models": [{"path": str(setup.model)}],
        "streams": {"lanes": [{"places": setup.places, "threads": setup.threads}]},
        "kv": {"budget": setup.cells, "layout": "paged" if contender is Contender.PAGED else "partitioned"},
    }


def fanout_markdown(result: FanoutResult) -> str:
    """Return the rounds as a table, and the medians and quartiles of their ratios."""
    plan, setup = result.plan, result.plan.setup
    lines = [
        f"{setup.model.name}, {setup.places} places, {setup.threads} threads, {setup.cells} KV cells; "
        f"seed {plan.seed}.",
        f"Each of {plan.documents} documents of {plan.document_words} words gets {plan.questions} questions of "
        f"{plan.question_words} words at once, answered with {plan.output_tokens} tokens.",
        *(f"llama.cpp in {name}: {build}." for name, build in result.builds.items()),
        "",
    ]
    parts: dict[str, Callable[[Round], Pass]] = {"new": lambda one: one.cold, "again": lambda one: one.repeated}
    for name, part in parts.items():
        lines += [*_table(result, name, part), "", *(_ratio_line(result, one, name, part) for one in OURS), ""]
    return "\n".join(lines)


def _table(result: FanoutResult, name: str, part: Callable[[Round], Pass]) -> Iterator[str]:
    titles = [
        f"documents {name}, s",
        *(contender.value for contender in Contender),
        *(f"ratio, {one.value}" for one in OURS),
    ]
    yield "| " + " | ".join(titles) + " |"
    yield "| " + " | ".join("---" for _ in titles) + " |"
    ratios = [result.ratios(one, part) for one in OURS]
    for number in range(result.plan.rounds):
        passes = [part(result.rounds[contender][number]) for contender in Contender]
        seconds = " | ".join(f"{one.seconds:.2f} ({100 * one.cached:.0f} % cached)" for one in passes)
        yield f"| {number + 1} | {seconds} | " + " | ".join(f"{of[number]:.2f}" for of in ratios) + " |"


def _ratio_line(result: FanoutResult, contender: Contender, name: str, part: Callable[[Round], Pass]) -> str:
    ratios = result.ratios(contender, part)
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return (
        f"Documents {name}, {contender.value}: {median(ratios):.2f} times as fast, quartiles {low:.2f} to {high:.2f}."
    )


class _Texts:
    """The prompts of one round."""

    def __init__(self, plan: FanoutPlan, number: int) -> None:
        seed = random.Random(f"{plan.seed}/{number}").getrandbits(32)
        words, length = Span(plan.document_words, plan.document_words), Span(plan.output_tokens, plan.output_tokens)
        self.workload = Workload(words=words, output_tokens=length)
        short = Workload(words=Span(plan.question_words, plan.question_words), output_tokens=length)
        documents, questions = self.workload.questions(seed, 0), short.questions(seed, 1)

        def about(document: str) -> list[Question]:
            asked = [next(questions) for _ in range(plan.questions)]
            return [Question(f"{document} {one.prompt}", one.output_tokens, one.seed) for one in asked]

        texts = [next(documents).prompt for _ in range(plan.documents)]
        self.first = [about(text) for text in texts]
        self.again = [about(text) for text in texts]
        self.others = [next(documents) for _ in range(plan.setup.places)]


async def _measure(target: Target, texts: _Texts) -> Round:
    cold = await _pass(target, texts.workload, texts.first)
    await _ask_together(target, texts.workload, texts.others)
    return Round(cold, await _pass(target, texts.workload, texts.again))


async def _pass(target: Target, workload: Workload, documents: Sequence[Sequence[Question]]) -> Pass:
    begin = time.monotonic()
    records = [record for questions in documents for record in await _ask_together(target, workload, questions)]
    seconds = time.monotonic() - begin
    cached = sum(record.cached_tokens or 0 for record in records)
    return Pass(seconds, cached / sum(record.prompt_tokens or 0 for record in records))


async def _ask_together(target: Target, workload: Workload, questions: Sequence[Question]) -> list[Record]:
    recordings = [Recording(client, one.output_tokens, time.monotonic()) for client, one in enumerate(questions)]
    async with anyio.create_task_group() as group:
        for question, recording in zip(questions, recordings, strict=True):
            group.start_soon(exchange, target, target.encode(question, workload), recording)
    records = [read(recording) for recording in recordings]
    for record in records:
        if record.error is not None or record.output_tokens != record.asked_tokens:
            problem = record.error or f"{record.output_tokens} tokens came, and not {record.asked_tokens}"
            raise LlamalaneError(f"a request failed: {problem}")
    return records


def _serve(contender: Contender, setup: Setup, folder: Path) -> AbstractContextManager[Server]:
    if contender is Contender.XLLAMACPP:
        return serve(contender.peer, setup)
    config = folder / f"{contender.name.lower()}.yaml"
    config.write_text(yaml.safe_dump(configuration(setup, contender)))
    return serve_config(config)
