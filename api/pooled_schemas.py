"""What the answers of the endpoints for whole texts look like, for the description of the API."""

from __future__ import annotations

from pydantic import BaseModel, Field


class PromptUsage(BaseModel):
    """Token counts of all texts together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingEntry(BaseModel):
    """The vector of one input, of length 1: numbers, or the base64 of little-endian floats of 32 bits."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """The vectors of the inputs, in their order."""

    object: str = "list"
    model: str
    usage: PromptUsage
    data: list[EmbeddingEntry]


class RankedText(BaseModel):
    """A document that was sent back."""

    text: str


class RankedDocument(BaseModel):
    """How well one document answers the query; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: RankedText | None = Field(default=None, description="Only if it was asked for.")


class Ranking(BaseModel):
    """The documents, the best first."""

    id: str
    model: str
    usage: PromptUsage
    results: list[RankedDocument]


class Tokenized(BaseModel):
    """The tokens of a prompt, and the most that a sequence of the model holds."""

    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(BaseModel):
    """The text of tokens."""

    prompt: str
