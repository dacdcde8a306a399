"""`/v1/completions`: prompts as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llamalane.api.choices import Endpoint, PromptInput
from llamalane.api.schemas import CompletionBody, Prompt
from llamalane.ids import RequestId
from llamalane.scheduler import Engine, RequestHandle, Result, SubmitOptions


class Completions(Endpoint[CompletionBody]):
    """Continues texts."""

    path = "/v1/completions"
    body_type = CompletionBody
    id_prefix = "cmpl"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def prompts(self, engine: Engine, body: CompletionBody) -> Sequence[PromptInput]:
        """Return the prompts, of which those in tokens have a known length."""
        return [_input(engine, prompt) for prompt in body.prompt]

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        """Return a finished choice."""
        return _choice(index, result.text, result.finish_reason.value)

    def first_chunk(self, index: int) -> None:
        """Return None: a text begins with itself."""

    def text_chunk(self, index: int) -> tuple[str, str]:
        """Return what stands before and after the text of a chunk."""
        return f'{{"index":{index},"text":', ',"logprobs":null,"finish_reason":null}'

    def last_chunk(self, index: int, finish: str) -> dict[str, Any]:
        """Return the choice of the chunk that tells why the text ended."""
        return _choice(index, "", finish)


def _input(engine: Engine, prompt: Prompt) -> PromptInput:
    async def submit(ids: Sequence[RequestId], options: SubmitOptions) -> list[RequestHandle]:
        return await engine.submit_choices(prompt, ids, **options)

    return PromptInput(submit, 1 if isinstance(prompt, str) else len(prompt))


def _choice(index: int, text: str, finish: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
