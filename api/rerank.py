"""`/v1/rerank`: how well documents answer a query, in the shape of Jina's and Cohere's APIs."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from llamalane.api.field_schemas import DOCUMENT
from llamalane.api.pooled import MAX_INPUTS, PooledAnswer, PooledBody, PooledEndpoint, usage_of
from llamalane.api.pooled_schemas import Ranking
from llamalane.scheduler import EmbedOptions, Engine


def _documents(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("documents", "it must be a list of at least one document")
    if len(value) > MAX_INPUTS:
        raise PydanticCustomError("documents", "at most {most} documents are taken at once", {"most": MAX_INPUTS})
    return [_document(one, index) for index, one in enumerate(value)]


def _document(value: Any, index: int) -> str:
    text = value.get("text") if isinstance(value, dict) and value.keys() == {"text"} else value
    if not isinstance(text, str):
        raise PydanticCustomError(
            "document", "document {index} must be a string, or an object with a string as its text", {"index": index}
        )
    return text


class RerankBody(PooledBody):
    """The body of `/v1/rerank`.

    `top_n` keeps only so many of the best; `return_documents` sends the documents back. A model's single score is
    mapped to 0 … 1, unless `use_activation` is false.
    """

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[
        list[str],
        PlainValidator(_documents),
        WithJsonSchema({"type": "array", "items": DOCUMENT, "minItems": 1, "maxItems": MAX_INPUTS}),
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    use_activation: bool | None = None


class Rerank(PooledEndpoint[RerankBody]):
    """Ranks documents by how well they answer a query."""

    paths = ("/v1/rerank", "/rerank", "/v2/rerank")
    body_type = RerankBody
    answer_type = Ranking

    async def answer(self, engine: Engine, body: RerankBody, options: EmbedOptions) -> PooledAnswer:
        """Return the documents' scores, the best first."""
        model = engine.find_embedder("rerank", body.model)
        found = await engine.rerank(
            body.query, body.documents, use_activation=body.use_activation is not False, **options
        )
        best = sorted(found, key=lambda one: -one.score)[: body.top_n]
        entries: list[dict[str, Any]] = [{"index": one.index, "relevance_score": one.score} for one in best]
        if body.return_documents:
            entries = [{**entry, "document": {"text": body.documents[entry["index"]]}} for entry in entries]
        results = [one.result for one in found]
        head = {"id": f"rerank-{secrets.token_hex(12)}", "model": model.names[0], "usage": usage_of(results)}
        return PooledAnswer(head, "results", entries, results)
