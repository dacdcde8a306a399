"""`/v1/completions`: prompts as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llamalane.api.answer_schemas import Completion, CompletionChunk
from llamalane.api.choices import ChoicesEndpoint
from llamalane.api.logprobs import Echo, completion_logprobs, echo_logprobs, joined
from llamalane.api.orders import PromptInput
from llamalane.api.schemas import CompletionBody, Prompt
from llamalane.ids import RequestId
from llamalane.scheduler import Engine, RequestHandle, Result, SubmitOptions, TextPiece
from llamalane.scheduler.spelling import text_of


class Completions(ChoicesEndpoint[CompletionBody]):
    """Continues texts."""

    path = "/v1/completions"
    body_type = CompletionBody
    answer = Completion
    chunk = CompletionChunk
    operation = "text_completion"
    id_prefix = "cmpl"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def prompts(self, engine: Engine, body: CompletionBody) -> Sequence[PromptInput]:
        """Return the prompts, of which those in tokens have a known length."""
        return [_input(engine, prompt, echoes=body.echoes) for prompt in body.prompt]

    def choice(self, index: int, result: Result, echo: Echo | None = None) -> dict[str, Any]:
        """Return a finished choice."""
        choice = self.first_chunk(index, echo) or _choice(index, "")
        choice["text"] += result.text
        choice["finish_reason"] = result.finish_reason.value
        if result.logprobs is not None:
            ending = () if echo is None or result.ending is None else (result.ending,)
            output = completion_logprobs([*result.logprobs, *ending], echo)
            choice["logprobs"] = output if choice["logprobs"] is None else joined(choice["logprobs"], output)
        return choice

    def first_chunk(self, index: int, echo: Echo | None = None) -> dict[str, Any] | None:
        """Return the choice of the chunk before the output: the prompt, if it is to be there."""
        return None if echo is None else _choice(index, echo.text, logprobs=echo_logprobs(echo))

    def text_chunk(self, index: int) -> tuple[str, str]:
        """Return what stands before and after the text of a chunk."""
        return f'{{"index":{index},"text":', ',"logprobs":null,"finish_reason":null}'

    def last_chunk(self, index: int, finish: str) -> dict[str, Any]:
        """Return the choice of the chunk that tells why the text ended."""
        return _choice(index, "", finish)

    def scored_chunk(self, index: int, piece: TextPiece, echo: Echo | None = None) -> dict[str, Any]:
        """Return the choice of a chunk that brings log probabilities with its text."""
        return _choice(index, piece.text, logprobs=completion_logprobs(piece.tokens, echo))


def _input(engine: Engine, prompt: Prompt, *, echoes: bool) -> PromptInput:
    async def submit(ids: Sequence[RequestId], options: SubmitOptions) -> list[RequestHandle]:
        return await engine.submit_choices(prompt, ids, **options)

    echo = (prompt if isinstance(prompt, str) else text_of(engine.spell(prompt))) if echoes else None
    return PromptInput(submit, 1 if isinstance(prompt, str) else len(prompt), echo)


def _choice(index: int, text: str, finish: str | None = None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish,
    }
