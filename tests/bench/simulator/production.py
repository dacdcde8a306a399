"""Production's scheduler and running sets on a virtual clock: what the simulator has to agree with.

Every lane is computed step by step, and every step's report goes through the scheduler. Nothing here is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import anyio

from llamalane.bench.simulator.machine import Machine
from llamalane.bench.simulator.passes import Part, passes_of
from llamalane.bench.simulator.request import SECOND, Picoseconds, SimulatedRequest, seconds
from llamalane.clock import VirtualClock
from llamalane.ids import RequestId, SequenceId, StepNumber
from llamalane.kvcache import Region, RegionPlan
from llamalane.scheduler.events import Event, EventKind
from llamalane.scheduler.output import OutputText
from llamalane.scheduler.request import Request
from llamalane.scheduler.rules import Rules
from llamalane.scheduler.scheduler import Scheduler
from llamalane.streams import (
    Device,
    FinishReason,
    LaneBackend,
    PromptProgress,
    RowOutput,
    SamplingParameters,
    StepPlan,
    StepReport,
    StepTimes,
    Stream,
    StreamOptions,
    StreamPool,
)
from llamalane.streams.llama import Batch, Sampler
from llamalane.streams.parts import Parts
from llamalane.streams.running_set import RunningSet, Work
from llamalane.streams.steps import Receiver

LIMIT = 4096
"""Tokens of one sequence."""
TOKEN = 7


class NoSampler:
    def close(self) -> None:
        pass


class Cells:
    """Cells that know how many tokens each sequence has, and nothing else."""

    def __init__(self) -> None:
        self.lengths: dict[SequenceId, int] = {}

    def remove(self, sequence: SequenceId, start: int = 0) -> bool:
        self.lengths[sequence] = min(start, self.length(sequence))
        return True

    def length(self, sequence: SequenceId) -> int:
        return self.lengths.get(sequence, 0)

    def copy(self, source: SequenceId, target: SequenceId, length: int) -> bool:
        self.lengths[target] = length
        return True

    def merge(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        pass

    def saving(self, sequence: SequenceId) -> Parts[bytearray]:
        yield from ()
        return bytearray(self.length(sequence))

    def restoring(self, sequence: SequenceId, data: bytearray) -> Parts[bool]:
        yield from ()
        self.lengths[sequence] = len(data)
        return True


class NoText:
    def add(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


class VirtualLane:
    """A lane's loop around production's running set, one step at a time. `end` is when the step under way ends."""

    def __init__(self, index: int, machine: Machine, clock: VirtualClock) -> None:
        self.name = f"lane-{index}"
        self.max_step_tokens = machine.max_step_tokens
        self.end: Picoseconds | None = None
        self._can_abandon = machine.can_abandon
        self._speed = machine.speed
        self._micro_batch = machine.micro_batch
        self._clock = clock
        self._rows = RunningSet(lambda join: cast(Sampler, NoSampler()))
        self._batch = Batch(machine.max_step_tokens)
        self._cells = Cells()
        self._mail: StepPlan | None = None
        self._receiver: Receiver | None = None
        self._work = Work()
        self._duration = 0
        self._number = 0
        self._broken = False
        self._waits = False

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def post(self, plan: StepPlan) -> None:
        self._mail = plan

    def abandon(self, step: StepNumber) -> None:
        if self._can_abandon and self.end is not None:
            assert step == self._number + 1
            self._broken = True

    def close(self) -> None:
        pass

    def react(self, time: Picoseconds) -> bool:
        """Break the step under way off if it was abandoned, or begin if a plan lies there; returns whether it did."""
        if self._broken:
            self._broken = False
            self._number += 1
            self._say(self._report(Work(), (), None, abandoned=True))
        elif self._waits:
            self._waits = False
        elif self.end is not None or self._mail is None:
            return False
        self._begin(time)
        return True

    def step(self) -> None:
        """End the step under way, begin the next one, and only then report."""
        assert self.end is not None
        time = self.end
        self._rows.advance(self._work)
        self._rows.share_prefixes(self._cells)
        for row in self._work.rows:
            self._cells.lengths[row.join.sequence] = row.computed
        outputs = []
        for row in self._work.outputs:
            row.chosen += 1
            row.tokens.append(TOKEN)
            finish = FinishReason.LENGTH if row.chosen == row.join.max_tokens else None
            if finish is not None:
                self._rows.retire(row, self._cells)
            outputs.append(RowOutput(row.join.request, TOKEN, finish))
        self._number += 1
        times = StepTimes(seconds(time - self._duration), seconds(self._duration), 0.0, 0.0)
        self._say(self._report(self._work, tuple(outputs), times))
        self.end = None
        follows = self._rows.successors and any(output.ended for output in outputs)
        if follows and self._rows.ready and self._mail is None:
            self._waits = True
        else:
            self._begin(time)

    def _begin(self, time: Picoseconds) -> None:
        self.end = None
        if self._mail is not None:
            self._rows.apply(self._mail, self._cells)
            self._mail = None
            if not self._rows.ready:
                self._say(self._report(Work(), (), None))
        if self._rows.ready:
            self._work = self._rows.fill(self._batch)
            self._duration = self._time_of(self._work)
            self.end = time + self._duration

    def _time_of(self, work: Work) -> Picoseconds:
        parts = [Part(row.join.sequence, row.computed, count) for row, count in work.computed]
        passes = passes_of(parts, partitioned=False, micro_batch=self._micro_batch)
        return self._speed.step(passes, len(work.outputs))

    def _report(
        self, work: Work, outputs: tuple[RowOutput, ...], times: StepTimes | None, *, abandoned: bool = False
    ) -> StepReport:
        news = self._rows.take_news()
        return StepReport(
            self.name,
            StepNumber(self._number),
            self._rows.version,
            left=tuple(news.left),
            parked=tuple(news.parked),
            copied=tuple(news.copied),
            started=tuple(work.started),
            outputs=outputs,
            prompts=tuple(PromptProgress(row.join.request, row.computed) for row in work.prompts),
            decode_rows=work.decode_rows,
            prefill_tokens=work.prefill_tokens,
            times=times,
            abandoned=abandoned,
        )

    def _say(self, report: StepReport) -> None:
        # The scheduler only listens when it is its turn, which is after the lane has gone on.
        assert self._receiver is not None
        self._receiver(report)


@dataclass
class Life:
    """The moments of one request, in seconds."""

    admitted: float
    first_token: float
    ended: float


class Production:
    """A scheduler with virtual lanes."""

    def __init__(self, machine: Machine, rules: Rules) -> None:
        self.clock = VirtualClock()
        self.lanes: list[VirtualLane] = []
        self.requests: list[Request] = []
        self.ended: dict[RequestId, float] = {}
        self.took_paused_cells = False
        """Whether a paused request lost its cells to another one, which waited for that."""
        self._parked: set[str] = set()
        self._aging = rules.aging

        def open_lane(stream: Stream) -> tuple[LaneBackend, Region]:
            lane = VirtualLane(len(self.lanes), machine, self.clock)
            self.lanes.append(lane)
            places = stream.options.places
            sequences = machine.sequences[len(self.lanes) - 1]
            return lane, Region(RegionPlan(LIMIT * places, places, LIMIT, sequences))

        options = [
            StreamOptions(name=f"lane-{index}", device=Device.CPU, places=places, cores=(), threads=1)
            for index, places in enumerate(machine.places)
        ]

        async def open_pool() -> StreamPool:
            return StreamPool(options, open_lane)

        self.pool = anyio.run(open_pool)
        self.scheduler = Scheduler(self.pool, rules, clock=self.clock, observer=self._observe)
        self.pool.start(self.scheduler.receive_from_lane)

    def run(self, arrivals: Sequence[SimulatedRequest]) -> list[Life]:
        """Run the requests, and return their lives in the order of their arrivals."""
        waiting = list(arrivals)
        while waiting or any(lane.end is not None for lane in self.lanes):
            ends = [(lane.end, index) for index, lane in enumerate(self.lanes) if lane.end is not None]
            end = min(ends, default=None)
            if waiting and (end is None or waiting[0].arrival <= end[0]):
                self._turn_to(waiting[0].arrival)
                self._submit(waiting.pop(0))
            else:
                assert end is not None
                self._turn_to(end[0])
                self.lanes[end[1]].step()
            self._settle(round(self.clock.now() * SECOND))
        return [self._life(request) for request in self.requests]

    def _settle(self, time: Picoseconds) -> None:
        """Let scheduler and lanes react to each other until nothing more happens at this moment."""
        reacted = [True]
        while any(reacted):
            self.scheduler.tick()
            reacted = [lane.react(time) for lane in self.lanes]

    def _turn_to(self, time: Picoseconds) -> None:
        # Seconds are set, not added up, so that no rounding creeps in.
        self.clock._now = seconds(time)

    def _submit(self, arriving: SimulatedRequest) -> None:
        now = self.clock.now()
        order = len(self.requests) + 1
        request = Request(
            id=arriving.id,
            # No two prompts begin alike, so that no cells are shared.
            tokens=[10 + order] * arriving.prompt_tokens,
            sampling=SamplingParameters(seed=0),
            max_tokens=arriving.output_tokens,
            level=arriving.level,
            tenant=arriving.tenant,
            choice=0,
            arrival=now,
            key=self._aging.key(arriving.level, now),
            order=order,
            output=OutputText(NoText(), ()),
        )
        self.requests.append(request)
        with self.scheduler.queue.reserve_nowait(request.level) as slot:
            self.scheduler.submit(request, slot)

    def _observe(self, event: Event) -> None:
        if event.kind is EventKind.ENDED:
            self.ended[RequestId(event.request)] = event.time
        elif event.kind is EventKind.ADMITTED:
            self._parked.discard(event.request)
        elif event.kind is EventKind.PARKED:
            self.took_paused_cells |= event.request in self._parked
            self._parked.add(event.request)

    def _life(self, request: Request) -> Life:
        assert request.admitted_at is not None
        assert request.first_token_at is not None
        return Life(request.admitted_at, request.first_token_at, self.ended[request.id])
