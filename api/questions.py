"""Asks the model a question, by its own chat template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llamalane.api.orders import PromptInput
from llamalane.api.reply import EFFORTS, Plan, Question, plan_reply
from llamalane.errors import InvalidRequestError
from llamalane.ids import RequestId
from llamalane.scheduler import TEMPLATE_VARIABLES, Engine, RequestHandle, SubmitOptions


def question_input(engine: Engine, question: Question) -> PromptInput:
    """Return the prompt that `question` makes, and how its outputs are read; raises what `plan_reply` raises."""
    plan = plan_for(engine, question)
    format = plan.format

    async def submit(ids: Sequence[RequestId], options: SubmitOptions) -> list[RequestHandle]:
        more = SubmitOptions(**options)
        if plan.grammar != options["sampling"].grammar:
            more["sampling"] = replace(options["sampling"], grammar=plan.grammar)
        if format.marks:
            more["shown"] = format.marks
        if format.single:
            more["stop_when"] = format.stop_when
        return await engine.submit_choices(plan.prompt, ids, **more)

    return PromptInput(submit, reply=None if format.plain else format)


def plan_for(engine: Engine, question: Question) -> Plan:
    """Return how the model that generates is asked `question`; raises what `plan_reply` raises."""
    template, model = engine.chat_template, engine.config.generating_model
    assert model is not None, "whose template it is"
    return plan_reply(template, model, question)


def check_variables(names: Iterable[str], field: str) -> None:
    """Raise `InvalidRequestError` if `field` sets variables of the chat template that are not the client's."""
    for name in names:
        if name in TEMPLATE_VARIABLES:
            raise InvalidRequestError(f"{field} may not set {name}, which the server does", param=field)


def check_effort(effort: str | None, field: str) -> None:
    """Raise `InvalidRequestError` if `field` asks for an effort that there is not."""
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequestError(f"{field} must be one of {', '.join(EFFORTS)}; got {effort!r:.100}", param=field)


async def tokens_of(engine: Engine, question: Question, model: str | None) -> list[int]:
    """Return the tokens of the prompt that `question` makes; raises what `plan_for` and `Engine.check_model` raise."""
    if model is not None:
        engine.check_model(model)
    return await engine.tokenize(plan_for(engine, question).prompt)
