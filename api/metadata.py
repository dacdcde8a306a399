"""What clients may write on things for their own use, as OpenAI's API has it: `metadata`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
