"""The comments that keep a silent stream open: they say where the request stands."""

from __future__ import annotations

from collections.abc import Sequence

from llamalane.api.sse import WAITING
from llamalane.errors import EngineClosedError
from llamalane.ids import RequestId
from llamalane.scheduler import Engine, RequestState, Standing


def describe_first(engine: Engine, requests: Sequence[RequestId]) -> str:
    """Return where the first of some requests stands that has not ended, in a few words on one line."""
    for request in requests:
        try:
            return describe(engine.standing(request))
        except (KeyError, EngineClosedError):  # it has ended
            continue
    return WAITING


def describe(standing: Standing) -> str:
    """Return where a request stands, in a few words on one line."""
    if standing.position is not None:
        begun = "parked" if standing.generated else "queued"
        return f"{begun}, position {standing.position} of {standing.waiting}"
    if standing.state is RequestState.PARKING:
        return "parked"
    if standing.computing:
        what = "the prompt again" if standing.generated else "the prompt"
        return f"computing {what}, {standing.computed} of {standing.tokens} tokens"
    return f"generating, {standing.generated} tokens so far"
