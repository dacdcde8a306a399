"""Whatever happens in whatever order: every place comes back, and every output is what it would have been alone."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from llamalane.errors import QueueFullError
from llamalane.scheduler.handover import LaneRole
from llamalane.scheduler.priority import LEVELS
from llamalane.scheduler.request import Request, RequestState
from llamalane.scheduler.result import Result
from llamalane.streams import Parking
from tests.scheduler.harness import Harness
from tests.scheduler.scripted_lane import ScriptedLane, letters_with_an_end, spoken
from tests.scheduler.test_output import cut

PROMPTS = ("a", "ab", "abc", "abcabcabc" * 5, "b" * 30)
LIMIT = 64
MAX_WAITING = 12


class RandomOperations(RuleBasedStateMachine):
    requests: Bundle[Request] = Bundle("requests")

    @initialize(
        places=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        share=st.integers(0, 4),
        reserved=st.booleans(),
        can_roll_back=st.booleans(),
        max_step_tokens=st.sampled_from([4, 16, 512]),
        cells=st.sampled_from([None, 64, 100]),
        spare=st.integers(0, 2),
        park=st.none() | st.sampled_from(Parking),
        swap=st.sampled_from([(0, True), (60, True), (1 << 20, True), (1 << 20, False)]),
        abort_after=st.sampled_from([None, 0.0]),
        layout=st.sampled_from(["shared", "shared", "own", "partitioned"]),
        keepers=st.integers(0, 3),
        worthwhile=st.integers(1, 6),
        least_stowed=st.sampled_from([4, 12, 1000]),
        roles=st.just([]) | st.lists(st.sampled_from(LaneRole), min_size=3, max_size=3),
        handover_always=st.booleans(),
        short=st.sampled_from([1, 8]),
        at_once=st.sampled_from([1, 1, 3, 9]),
    )
    def begin(
        self,
        places: Sequence[int],
        share: int,
        reserved: bool,
        can_roll_back: bool,
        max_step_tokens: int,
        cells: int | None,
        spare: int,
        park: Parking | None,
        swap: tuple[int, bool],
        abort_after: float | None,
        layout: str,
        keepers: int,
        worthwhile: int,
        least_stowed: int,
        roles: list[LaneRole],
        handover_always: bool,
        short: int,
        at_once: int,
    ) -> None:
        self.harness = Harness(
            places,
            limit=LIMIT,
            share=share,
            reserve={1: 1} if reserved and sum(places) > 1 else {},
            max_requests=MAX_WAITING,
            max_step_tokens=max_step_tokens,
            can_roll_back=can_roll_back,
            speak=letters_with_an_end,
            cells=cells,
            spare=spare,
            park=park,
            swap_bytes=swap[0],
            swap_works=swap[1],
            abort_after=abort_after,
            shared=layout == "shared",
            partitioned=layout == "partitioned",
            keepers=keepers,
            worthwhile=worthwhile,
            least_stowed=least_stowed,
            roles=roles[: len(places)],
            handover_always=handover_always,
            short=short,
            at_once=at_once,
        )
        self.swap_works = swap[1]
        self.much_memory = swap[0] == 1 << 20
        self.roles = self.harness.scheduler._roster.roles
        self.texts: dict[Request, str] = {}
        self.without_context: set[str] = set()

    @rule(
        target=requests,
        level=st.sampled_from(LEVELS),
        prompt=st.sampled_from(PROMPTS),
        max_tokens=st.integers(1, 18),
        stop=st.lists(st.text("abcdefgh", min_size=1, max_size=2), max_size=2),
        tenant=st.sampled_from(["one", "two"]),
        deadline=st.none() | st.integers(1, 20),
    )
    def submit(
        self,
        level: int,
        prompt: str,
        max_tokens: int,
        stop: list[str],
        tenant: str,
        deadline: int | None,
    ) -> Request | MultipleResults[Request]:
        waiting = len(self.harness.scheduler.queue)
        try:
            request = self.harness.submit(
                level, prompt=prompt, max_tokens=max_tokens, stop=stop, tenant=tenant, deadline=deadline
            )
        except QueueFullError:
            assert 2 * waiting >= MAX_WAITING  # up to half is kept for those who were turned away before
            return multiple()
        assert waiting < MAX_WAITING  # one that came back may be beyond it
        self.texts[request] = ""
        return request

    @rule(
        target=requests,
        levels=st.lists(st.sampled_from(LEVELS), min_size=2, max_size=5),
        prompt=st.sampled_from(PROMPTS),
    )
    def crowd(self, levels: list[int], prompt: str) -> MultipleResults[Request]:
        """Submit requests one after the other, with a step after each, so that the later meet full lanes."""
        requests: list[Request] = []
        for number, level in enumerate(levels):
            if len(self.harness.scheduler.queue) < MAX_WAITING:
                text = prompt + "x" * number
                request = self.submit(level, text, min(18, LIMIT - len(text)), [], "one", None)
                requests += [request] if isinstance(request, Request) else []
            self.harness.step()
        return multiple(*requests)

    @rule(target=requests, request=requests)
    def go_on_talking(self, request: Request) -> Request | MultipleResults[Request]:
        """Submit what a finished request said as the beginning of the next one."""
        outcome = request.delivery.outcome
        tokens = [*request.tokens, *(outcome.tokens if isinstance(outcome, Result) else ()), ord("+")]
        prompt = "".join(map(chr, tokens))
        if len(prompt) + 10 > LIMIT:
            return multiple()
        return self.submit(3, prompt, 10, [], request.tenant, None)

    @rule(data=st.data())
    def lane_steps(self, data: st.DataObject) -> None:
        self.lane(data).step()

    @rule()
    def tick(self) -> None:
        self.harness.tick()

    @rule(count=st.integers(1, 8))
    def everything_steps(self, count: int) -> None:
        self.harness.step(count)

    @rule(request=requests)
    def cancel(self, request: Request) -> None:
        ended = request.delivery.outcome
        self.harness.scheduler.cancel(request)
        assert request.delivery.outcome is not None
        assert ended is None or request.delivery.outcome is ended

    @rule(request=requests)
    def take_text(self, request: Request) -> None:
        self.texts[request] += request.delivery.take_nowait()

    @rule(seconds=st.integers(1, 8))
    def time_passes(self, seconds: int) -> None:
        self.harness.clock.advance(seconds)

    @rule(data=st.data())
    def lane_fails(self, data: st.DataObject) -> None:
        lane = self.lane(data)
        lane.fail()
        self.without_context.add(lane.name)

    @precondition(lambda self: self.without_context)
    @rule(data=st.data())
    def lane_comes_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.without_context)))
        self.harness.lanes[name].reopen()
        self.without_context.remove(name)

    @rule(request=requests)
    def row_breaks(self, request: Request) -> None:
        for lane in self.harness.lanes.values():
            lane.broken.add(request.id)

    @invariant()
    def text_is_what_the_request_alone_would_say(self) -> None:
        for request in self.texts:
            outcome = request.delivery.outcome
            said = spoken_alone(request)
            shown = self.texts[request]
            assert said.startswith(shown)
            if isinstance(outcome, Result):
                assert outcome.text == said
                assert outcome.usage.completion_tokens == len(outcome.tokens)
                assert 0 <= outcome.usage.cached_tokens < outcome.usage.prompt_tokens

    @invariant()
    def lanes_for_prompts_hold_nobody_who_has_got_a_token_there(self) -> None:
        for request in self.texts:
            if request.state is RequestState.RUNNING and self.much_memory and request.lease is not None:
                assert not request.since_join or not self.roles.prefills(request.lease.lane)

    @invariant()
    def who_was_handed_over_waits_with_its_cells(self) -> None:
        for request in self.texts:
            if request.state is RequestState.WAITING and request.handed_over:
                assert request.saved is not None
                assert request.lease is None

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        for name in sorted(self.without_context):
            self.harness.lanes[name].reopen()
        self.harness.run()
        self.harness.check_conserved()
        for request in self.texts:
            assert request.state is RequestState.DONE
            self.take_text(request)
        self.text_is_what_the_request_alone_would_say()
        for request, text in self.texts.items():
            if isinstance(request.delivery.outcome, Result):
                assert text == spoken_alone(request), "not all text was delivered"
        if self.swap_works:
            assert not any(lane.wasted_joins for lane in self.harness.lanes.values())
        self.harness.close()

    def lane(self, data: st.DataObject) -> ScriptedLane:
        lanes = [lane for name, lane in sorted(self.harness.lanes.items()) if name not in self.without_context]
        return data.draw(st.sampled_from(lanes or sorted(self.harness.lanes.values(), key=lambda lane: lane.name)))


def spoken_alone(request: Request) -> str:
    prompt = "".join(map(chr, request.tokens))
    return cut(spoken(prompt, request.max_tokens, letters_with_an_end), request.sampling.stop)[0]


TestRandomOperations = RandomOperations.TestCase
TestRandomOperations.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
