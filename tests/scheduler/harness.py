"""A scheduler over scripted lanes, on a clock that the test turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from llamalane.clock import VirtualClock
from llamalane.errors import EngineClosedError, LlamalaneError
from llamalane.ids import Level
from llamalane.kvcache import Layout, Region, RegionPlan, SharedRegion
from llamalane.scheduler.admission import AdmissionPolicy
from llamalane.scheduler.displacement import DisplacementPolicy
from llamalane.scheduler.events import Event, EventKind
from llamalane.scheduler.fairness import Weights
from llamalane.scheduler.growth import GrowthPredictor
from llamalane.scheduler.handover import HandoverPolicy, LaneRole
from llamalane.scheduler.limits import TenantLimit
from llamalane.scheduler.parking import ParkingCosts
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.queue import QueueBounds
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.result import Result
from llamalane.scheduler.rules import Rules
from llamalane.scheduler.scheduler import Scheduler
from llamalane.scheduler.stowage import Stowage
from llamalane.streams import Device, LaneBackend, Parking, Stream, StreamOptions, StreamPool
from tests.scheduler.building import AGING, RequestMaker
from tests.scheduler.scripted_lane import ScriptedLane, Speak, StepSeconds, letters, quick, spoken
from tests.scheduler.test_output import cut

PATIENCE = 10_000
"""Rounds after which something that should have ended never will."""


class Harness:
    """Lanes with the given numbers of places, and a scheduler that runs when the test calls it."""

    def __init__(
        self,
        places: Sequence[int] = (2,),
        *,
        limit: int = 64,
        share: int = 0,
        reserve: Mapping[int, int] | None = None,
        max_requests: int = 1000,
        max_waiting_tokens: int = 10**6,
        queue_reserve: Mapping[int, int] | None = None,
        max_step_tokens: int = 512,
        can_roll_back: bool = True,
        speak: Speak = letters,
        target_itl: float | Mapping[int, float] = 0.1,
        step_seconds: StepSeconds = quick,
        cells: int | None = None,
        spare: int | None = None,
        shared: bool = True,
        partitioned: bool = False,
        keepers: int = 4,
        worthwhile: int = 16,
        least_stowed: int = 64,
        max_parks: int = 3,
        park: Parking | None = None,
        swap_bytes: int = 1 << 20,
        swap_works: bool = True,
        at_once: int = 1,
        abort_after: float | None = None,
        shed: bool = False,
        limits: Mapping[str, TenantLimit] | None = None,
        roles: Sequence[LaneRole] = (),
        handover_always: bool = True,
        short: int = 1,
    ) -> None:
        self.clock = VirtualClock()
        self.maker = RequestMaker(AGING)
        self.events: list[Event] = []
        self.requests: list[Request] = []
        self.lanes: dict[str, ScriptedLane] = {}
        self.speak = speak
        self.growth = GrowthPredictor()
        targets = target_itl if isinstance(target_itl, Mapping) else dict.fromkeys(LEVELS, target_itl)

        shares = shared and can_roll_back and not partitioned

        def open_lane(stream: Stream) -> tuple[LaneBackend, Region | SharedRegion]:
            options = stream.options
            sequences = options.places + (options.places if spare is None else spare)
            room = sequences * limit if partitioned else cells or -(-sequences * limit // 256) * 256
            lane = ScriptedLane(
                options.name,
                limit=limit,
                room=room,
                swap_works=swap_works,
                shares=shares,
                max_step_tokens=max_step_tokens,
                can_roll_back=can_roll_back,
                at_once=at_once,
                speak=speak,
                step_seconds=step_seconds,
            )
            self.lanes[options.name] = lane
            layout = Layout.PARTITIONED if partitioned else Layout.PAGED
            plan = RegionPlan(room, options.places, limit, sequences, layout, keepers if shares else 0)
            return lane, SharedRegion(plan, worthwhile=worthwhile) if shares else Region(plan, can_roll_back)

        options = [
            StreamOptions(name=f"lane-{number}", device=Device.CPU, places=count, cores=(), threads=1)
            for number, count in enumerate(places)
        ]

        async def open_pool() -> StreamPool:
            return StreamPool(options, open_lane)

        # The pool's semaphore wants an event loop when it is made; nothing here waits, so nothing does later.
        self.pool = anyio.run(open_pool)
        costs = ParkingCosts(swap_bytes, park)
        named = {entry.name: role for entry, role in zip(options, roles, strict=False)}
        rules = Rules(
            aging=AGING,
            admission=AdmissionPolicy(share, by_level(reserve)),
            displacement=DisplacementPolicy(max_parks),
            costs=costs,
            stowage=Stowage(costs, least_tokens=least_stowed),
            growth=self.growth,
            targets={level: targets[level] for level in LEVELS},
            abort_after=abort_after,
            bounds=QueueBounds(max_requests, max_waiting_tokens, by_level(queue_reserve), shed=shed),
            limits=limits or {},
            default_limit=TenantLimit(),
            weights=Weights(),
            handover=HandoverPolicy(named, costs, always=handover_always, short=short) if roles else None,
        )
        self.scheduler = Scheduler(self.pool, rules, clock=self.clock, observer=self.events.append)
        self.pool.start(self.scheduler.receive_from_lane)

    @property
    def lane(self) -> ScriptedLane:
        """The first lane."""
        return self.lanes["lane-0"]

    def submit(self, level: int = 3, **options: Any) -> Request:
        """Submit a request; it waits until the next tick."""
        supersede, ignore_eos, gang = (options.pop(name, None) for name in ("supersede", "ignore_eos", "gang"))
        request = self.maker.make(level, self.clock.now(), **options)
        request.sampling = replace(request.sampling, ignore_eos=bool(ignore_eos))
        request.supersede, request.gang = supersede, gang
        with self.scheduler.queue.reserve_nowait(request.level) as slot:
            self.scheduler.submit(request, slot)
        self.requests.append(request)
        return request

    def tick(self) -> None:
        """Let the scheduler run once, and check its books."""
        self.scheduler.tick()
        self.check_books()

    def step(self, count: int = 1) -> None:
        """Let every lane step and the scheduler run, so many times."""
        for _ in range(count):
            for lane in self.lanes.values():
                lane.step()
            self.tick()

    def run(self) -> None:
        """Go on until every request is gone."""
        self.tick()
        for _ in range(PATIENCE):
            if self.scheduler.idle:
                return
            self.step()
        raise AssertionError(f"still there: {[request for request in self.requests if self.is_there(request)]}")

    def finish(self) -> None:
        """Go on until every request is gone, and check what each one said, and that everything has come back."""
        self.run()
        for request in self.requests:
            if isinstance(request.delivery.outcome, Result):
                assert request.delivery.outcome.text == self.alone(request)
        self.check_conserved()
        assert not self.scheduler.counters.failed

    def alone(self, request: Request) -> str:
        """What a request says when nobody disturbs it."""
        prompt = "".join(map(chr, request.tokens))
        return cut(spoken(prompt, request.max_tokens, self.speak), request.sampling.stop)[0]

    def close(self) -> None:
        """Shut down as an engine does, whatever is still going on, and check that every place came back."""
        self.scheduler.end_all(EngineClosedError("the test is over"))
        self.pool.close()
        self.scheduler.release_all()
        self.check_books()
        assert self.scheduler.idle

    def is_there(self, request: Request) -> bool:
        return request.state is not RequestState.DONE

    def check_books(self) -> None:
        """Check that each place is counted exactly once, whatever is going on."""
        self.pool.check()
        holding = [request for request in self.requests if request.lease is not None]
        held = [request for request in holding if request.lease and not request.lease.paused]
        assert self.pool.leased == len(held)
        places = [(request.lane, request.lease.sequence) for request in holding if request.lease is not None]
        assert len(set(places)) == len(places), "two requests share a sequence"
        for request in self.requests:
            if request.state is RequestState.RUNNING:
                assert request.lease is not None
                assert not request.lease.paused
            if request.state in (RequestState.WAITING, RequestState.PARKING) and request.lease is not None:
                assert request.lease.paused
            assert request.state is not RequestState.DONE or request.lease is None
            ended = request.state in (RequestState.LEAVING, RequestState.DONE)
            assert (request.delivery.outcome is not None) == ended
        assert +Counter(self.scheduler.running) == Counter(request.level for request in held)
        saved = [len(request.saved.data) for request in self.requests if request.saved is not None]
        assert self.scheduler.rules.costs.store.reserved_bytes == sum(saved)
        assert {request.id for request in self.scheduler.queue} == {
            request.id for request in self.requests if request.state is RequestState.WAITING
        }

    def check_conserved(self) -> None:
        """Check that everything has come back, now that nothing is left."""
        self.check_books()
        assert self.scheduler.idle
        assert self.pool.free == self.pool.places
        assert self.pool.leased == 0
        assert self.scheduler.queue.tokens == 0
        for request in self.requests:
            ended = [event for event in self.events if event.request == request.id and event.kind is EventKind.ENDED]
            assert len(ended) == 1, f"{request.id} ended {len(ended)} times"
        for lane in self.pool.lanes:
            statistics = lane.region.statistics()
            assert statistics.reserved == statistics.paused == 0
        assert not any(lane.rows for lane in self.lanes.values())

    def kinds(self, request: Request) -> list[EventKind]:
        """What happened to a request, in order."""
        return [event.kind for event in self.events if event.request == request.id]


Start = Callable[..., Harness]
"""What the fixture `start` gives: takes what `Harness` takes."""


def by_level(counts: Mapping[int, int] | None) -> dict[Level, int]:
    return {Level(level): count for level, count in (counts or {}).items()}


def result_of(request: Request) -> Result:
    outcome = request.delivery.outcome
    assert isinstance(outcome, Result), outcome
    return outcome


def error_of(request: Request) -> LlamalaneError:
    outcome = request.delivery.outcome
    assert isinstance(outcome, LlamalaneError), outcome
    return outcome
