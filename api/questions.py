"""Asks the model a question, by its own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llamalane.api.orders import PromptInput
from llamalane.api.reply import Plan, Question, plan_reply
from llamalane.ids import RequestId
from llamalane.scheduler import Engine, RequestHandle, SubmitOptions


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
