"""`/v1/embeddings`: vectors of texts."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from llamalane.api.field_schemas import texts_or_tokens
from llamalane.api.pooled import MAX_INPUTS, PooledAnswer, PooledBody, PooledEndpoint, usage_of
from llamalane.api.pooled_schemas import EmbeddingList
from llamalane.api.schemas import Prompt, read_prompts
from llamalane.scheduler import EmbeddingResult, EmbedOptions, Engine

Encoding = Literal["float", "base64"]


def _inputs(value: Any) -> list[Prompt]:
    inputs = read_prompts(value)
    if inputs is None:
        raise PydanticCustomError(
            "input", "it must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
        )
    if not inputs or not all(inputs):
        raise PydanticCustomError("empty", "an input needs at least one character, or one token")
    if len(inputs) > MAX_INPUTS:
        raise PydanticCustomError("inputs", "at most {most} inputs are taken at once", {"most": MAX_INPUTS})
    return inputs


class EmbeddingBody(PooledBody):
    """The body of `/v1/embeddings`.

    Beside OpenAI's fields there are `add_special_tokens`, whether a text gets what the model wants around it (true),
    and `truncate_prompt_tokens`.
    """

    input: Annotated[
        list[Prompt],
        PlainValidator(_inputs),
        texts_or_tokens(MAX_INPUTS),
    ]
    encoding_format: Encoding | None = None
    dimensions: int | None = None
    add_special_tokens: bool | None = None


class Embeddings(PooledEndpoint[EmbeddingBody]):
    """Turns texts into vectors of length 1."""

    paths = ("/v1/embeddings",)
    body_type = EmbeddingBody
    answer_type = EmbeddingList

    async def answer(self, engine: Engine, body: EmbeddingBody, options: EmbedOptions) -> PooledAnswer:
        """Return the vectors of the inputs, in their order."""
        model = engine.find_embedder("embed", body.model)
        results = await engine.embed(
            body.input, dimensions=body.dimensions, add_special_tokens=body.add_special_tokens is not False, **options
        )
        head = {"object": "list", "model": model.names[0], "usage": usage_of(results)}
        return PooledAnswer(head, "data", _entries(results, body.encoding_format or "float"), results)


def _entries(results: Sequence[EmbeddingResult], encoding: Encoding) -> Iterator[dict[str, Any]]:
    for index, result in enumerate(results):
        vector: str | list[float]
        if encoding == "base64":
            vector = base64.b64encode(result.vector.astype("<f4").tobytes()).decode()
        else:
            # As few digits as tell a float of 32 bits apart from all others: half of what JSON would else have.
            vector = [float(f"{number:.9g}") for number in result.vector.tolist()]
        yield {"object": "embedding", "index": index, "embedding": vector}
