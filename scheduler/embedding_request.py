"""One text on its way through the scheduler, to be embedded or scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llamalane.ids import Level, RequestId
from llamalane.scheduler.delivery import Delivery, Ending
from llamalane.scheduler.output import OutputText
from llamalane.scheduler.request import Request
from llamalane.scheduler.result import EmbeddingResult
from llamalane.streams import SamplingParameters, llama

_NO_SAMPLING = SamplingParameters(seed=0)


@dataclass(slots=True, eq=False)
class EmbeddingRequest(Request):
    """A request whose tokens are computed whole in one step, on a lane without cells; it generates nothing.

    `begun` tells whether other texts of its call were embedded before.
    """

    begun: bool = False

    @property
    def cells(self) -> int:
        """How many KV cells it can come to need: none."""
        return 0

    def embedding(self, vector: llama.Vector, now: float) -> EmbeddingResult:
        """Return its result."""
        assert self.admitted_at is not None
        return EmbeddingResult(
            id=self.id,
            vector=vector,
            prompt_tokens=len(self.tokens),
            wait=self.admitted_at - self.arrival,
            total=now - self.arrival,
            lane=self.lane,
            level=self.level,
        )


def make_embedding_request(
    name: RequestId,
    tokens: Sequence[int],
    *,
    model: str,
    level: Level,
    tenant: str,
    arrival: float,
    key: tuple[int, float],
    order: int,
    deadline: float | None,
    deadline_after: float,
    begun: bool,
    on_close: Callable[[Ending], None],
) -> EmbeddingRequest:
    """Return the request for one text; the arguments are what it and its `Delivery` call so."""
    return EmbeddingRequest(
        id=name,
        tokens=tokens,
        sampling=_NO_SAMPLING,
        max_tokens=0,
        level=level,
        tenant=tenant,
        choice=0,
        arrival=arrival,
        key=key,
        order=order,
        output=OutputText(llama.Detokenizer(()), ()),
        deadline=deadline,
        deadline_after=deadline_after,
        model=model,
        delivery=Delivery(on_close),
        begun=begun,
    )
