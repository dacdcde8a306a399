"""What the lanes are for: on which of them a waiting request may start, and who is handed over to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llamalane.scheduler.handover import DirectStart, Handover, HandoverPolicy, LaneRole
from llamalane.scheduler.ledger import LaneLedger
from llamalane.scheduler.request import Request, RequestState
from llamalane.streams import PoolLane, StepReport


class LaneRoles:
    """The roles of the lanes in `ledgers`, by `policy`; without one, every lane is for everything.

    Roles count only while a lane other than those for prompts is left that new requests can come to. Lanes that embed
    have none: requests that want their model start there, and nowhere else.
    """

    def __init__(self, ledgers: Mapping[str, LaneLedger], policy: HandoverPolicy | None) -> None:
        self._ledgers = ledgers
        self._generating = [ledger for ledger in ledgers.values() if not ledger.lane.model]
        self._lanes = [ledger.lane for ledger in self._generating]
        self._policy = policy
        self._disturbed: dict[str, bool] = {}
        """For each lane, whether a lane for prompts was computing some when its last step ended."""

    @property
    def homes(self) -> Sequence[PoolLane]:
        """The lanes on which requests can run to their ends."""
        return (self._policy is not None and self._homes()) or self._lanes

    def prefills(self, lane: PoolLane) -> bool:
        """Return whether a lane is just now for prompts only."""
        return self._policy is not None and self._is_for_prompts(lane) and bool(self._homes())

    def lanes_for(self, request: Request) -> Sequence[PoolLane]:
        """Return the lanes on which a waiting request may start, whether or not they have room for it."""
        if request.model:
            return [ledger.lane for ledger in self.ledgers_of(request)]
        homes = self._homes()
        if self._policy is None or not homes:
            return self._lanes
        prefill = [ledger for ledger in self._generating if self._takes_prompts(ledger)]
        if not prefill or _has_to_be_home(request):
            return homes
        free = [lane for lane in homes if lane.free] or homes
        near = [lane for lane in free if self._policy.is_short(_tokens_left(request, lane))]
        if near:
            return near
        direct = [lane for lane in free if self._policy.role(lane.name) is LaneRole.ANY] or free
        if self._pays(self._policy, request, direct, prefill):
            return [ledger.lane for ledger in prefill]
        return direct

    def ledgers_of(self, request: Request) -> Sequence[LaneLedger]:
        """Return the books of all lanes of the model that a request wants."""
        return [ledger for ledger in self._ledgers.values() if ledger.lane.model == request.model]

    def first_cells(self, request: Request, lane: PoolLane) -> int:
        """Return how many cells a request gets when it starts on a lane.

        On one for prompts it gets none for its output: the lane must not run ahead until it is handed over.
        """
        return request.length if self.prefills(lane) else request.next_cells

    def grows(self, request: Request) -> bool:
        """Return whether a running request needs cells for its output on the lane that it is on."""
        return request.since_join > 0 or not self.prefills(self._ledgers[request.lane].lane)

    def hands_over(self, request: Request) -> bool:
        """Return whether a request is to be handed over that has just got a token, and not its last one.

        Where its cells could not be saved it stays to its end: to compute them again elsewhere would be in vain.
        """
        if self._policy is None or request.state is not RequestState.RUNNING or request.since_join != 1:
            return False
        ledger = self._ledgers[request.lane]
        if request.dropped or not self.prefills(ledger.lane):
            return False
        under_way = [one.length for each in self._ledgers.values() for one in each.parking.values() if one.handed_over]
        return self._policy.fits(request.length + sum(under_way))

    def observe(self, report: StepReport) -> None:
        """Learn from a step how much prompts on other lanes disturb it."""
        if self._policy is None or report.times is None or self._is_for_prompts(self._ledgers[report.lane].lane):
            return
        disturbed = any(_prompts(ledger) for ledger in self._ledgers.values() if self._is_for_prompts(ledger.lane))
        before = self._disturbed.get(report.lane)
        self._disturbed[report.lane] = disturbed
        plain = report.decode_rows and not report.prefill_tokens and not report.drafted_tokens
        if before is disturbed and plain:
            seconds = report.times.decode + report.times.sample
            self._policy.slowdown.observe(report.lane, report.decode_rows, seconds, disturbed=disturbed)

    def _homes(self) -> list[PoolLane]:
        return [
            ledger.lane
            for ledger in self._generating
            if not (ledger.down or ledger.lane.withheld or self._is_for_prompts(ledger.lane))
        ]

    def _is_for_prompts(self, lane: PoolLane) -> bool:
        return self._policy is not None and self._policy.role(lane.name) is LaneRole.PREFILL

    def _takes_prompts(self, ledger: LaneLedger) -> bool:
        """Return whether a lane for prompts has a place for one, or will have when another has been computed."""
        staying = sum(request.since_join > 0 for request in ledger.running.values())
        return self._is_for_prompts(ledger.lane) and ledger.lane.open and staying < ledger.lane.region.places

    def _pays(
        self, policy: HandoverPolicy, request: Request, direct: Sequence[PoolLane], prefill: Sequence[LaneLedger]
    ) -> bool:
        """Return whether a handover beats a start on whichever lane of `direct` has the fewest outputs."""
        home = min((self._ledgers[lane.name] for lane in direct), key=_outputs)
        token_seconds = home.model.token_seconds
        start = DirectStart(
            tokens=_tokens_left(request, home.lane), outputs=_outputs(home), token_seconds=token_seconds
        )
        last = request.max_tokens - len(request.generated) == 1
        handovers = [
            Handover(
                tokens=_tokens_left(request, ledger.lane),
                before=sum(one.cells_to_fill() for one in _prompts(ledger)),
                # Where no prompt was computed yet, it is thought to be as quick.
                token_seconds=ledger.model.token_seconds or token_seconds or 0.0,
                cells=0 if last else request.length,
            )
            for ledger in prefill
        ]
        return any(policy.pays(start, handover) for handover in handovers)


def _has_to_be_home(request: Request) -> bool:
    """Return whether a waiting request has to start where it can run to its end.

    It was handed over; or it is one of the choices of a prompt, which share its cells, and would have their own after
    a handover; or its sequence was shifted, or will be with the next token, which its lane does in its own time.
    """
    shifts = request.shift is not None and bool(request.dropped or request.shift.dropped(request.length + 1))
    return request.handed_over or len(request.company) > 1 or shifts


def _prompts(ledger: LaneLedger) -> list[Request]:
    return [request for request in ledger.running.values() if not request.since_join]


def _outputs(ledger: LaneLedger) -> int:
    return sum(request.since_join > 0 for request in ledger.running.values())


def _tokens_left(request: Request, lane: PoolLane) -> int:
    """Return how many tokens a waiting request would have to compute on a lane before it gets the next one."""
    if request.saved is not None and request.fits_saved(lane):
        return request.length - request.saved.length
    if request.lease is not None and request.lease.lane is lane:
        return request.length - request.lease.cells
    return request.length - lane.region.cached(request.findable, request.scope)
