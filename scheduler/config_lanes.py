"""Which lane computes which model, and what keeps them from going together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llamalane.scheduler.config_file import Location
from llamalane.scheduler.config_machine import LaneConfig, ModelConfig

_LANES: Location = ("streams", "lanes")


def model_of(lane: LaneConfig, models: Sequence[ModelConfig]) -> ModelConfig | None:
    """Return the model that a lane computes: the one that it names, else the one that generates, else the only one.

    None when there is no such model.
    """
    if lane.model is not None:
        return next((model for model in models if lane.model in model.names), None)
    generating = next((model for model in models if not model.embeds), None)
    return generating or (models[0] if len(models) == 1 else None)


def lane_problems(models: Sequence[ModelConfig], lanes: Sequence[LaneConfig]) -> list[tuple[Location, str]]:
    """Return what is wrong with the lanes of `models`, each with its location."""
    problems = [(_LANES, message) for lane in lanes for message in _problems_of(lane, models)]
    if problems:
        return problems
    for index, model in enumerate(models):
        own = [lane for lane in lanes if model_of(lane, models) is model]
        name = model.names[0]
        if not own:
            message = f"no lane computes {name!r}: add one, such as {{name: {name}, model: {name}}}, to streams.lanes"
            problems.append((("models", index), message))
        elif not model.embeds and all(lane.role == "prefill" for lane in own):
            message = f"every lane of {name!r} has the role prefill: one must be decode or any, to compute outputs"
            problems.append((_LANES, message))
    return problems


def _problems_of(lane: LaneConfig, models: Sequence[ModelConfig]) -> Iterator[str]:
    model = model_of(lane, models)
    if model is None:
        names = ", ".join(name for model in models for name in model.names)
        wanted = f"names the model {lane.model!r}, which is none of" if lane.model else "has to name its model, one of"
        yield f"lane {lane.name!r} {wanted} {names}"
    elif model.embeds:
        given = {"kv_weight": lane.kv_weight, "layout": lane.layout, "role": None if lane.role == "any" else lane.role}
        for field, value in given.items():
            if value is not None:
                yield f"lane {lane.name!r} has a model for the task {model.task}, where {field} has no meaning"
