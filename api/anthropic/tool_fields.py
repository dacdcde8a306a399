"""The fields of a body that are about tools, as Anthropic's API has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from llamalane.api.reply import Tool, ToolMode
from llamalane.api.schemas import check_extra_fields
from llamalane.errors import InvalidRequestError

_NAME = re.compile("[A-Za-z0-9_.-]{1,128}")
# Fields that change what a tool is, each with the values that change nothing; null never does.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "input_examples": ([],),
}
_HARMLESS = frozenset({"cache_control", "eager_input_streaming"})


class CustomToolField(BaseModel):
    """A tool that the client runs itself; `input_schema` is the JSON schema of its input.

    Those that have a type of their own are the server's, or known to Anthropic's models only: they are refused.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    def read(self, where: str) -> Tool:
        """Return the tool, which stands at `where`; raises `InvalidRequestError` for one that cannot be called."""
        if self.type not in (None, "custom"):
            raise InvalidRequestError(
                f"{where} is of the type {self.type!r:.100}, which is not supported: there are only custom tools, with "
                "an input_schema",
                param=f"{where}.type",
            )
        check_extra_fields(self.model_extra or {}, f"{where}.", unsupported=_UNSUPPORTED, harmless=_HARMLESS)
        if self.name is None or not _NAME.fullmatch(self.name):
            raise InvalidRequestError(
                f"{where}.name must have from 1 to 128 letters, digits, '_', '.' or '-'; got {self.name!r:.200}",
                param=f"{where}.name",
            )
        param = f"{where}.input_schema"
        if self.input_schema is None:
            raise InvalidRequestError(f"{param} is missing", param=param)
        if self.input_schema.get("type", "object") != "object":
            raise InvalidRequestError(f'{param} must be a JSON schema of the type "object"', param=param)
        return Tool(self.name, self.description, self.input_schema, bool(self.strict), param)


class ToolChoiceField(BaseModel):
    """Whether tools are called: as the model likes, any, the one of that `name`, or none."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def read_tools(fields: Sequence[CustomToolField]) -> list[Tool]:
    """Return the tools of a body; raises `InvalidRequestError` for those that cannot be called."""
    tools = [field.read(f"tools[{index}]") for index, field in enumerate(fields)]
    for name, count in Counter(tool.name for tool in tools).items():
        if count > 1:
            raise InvalidRequestError(f"two tools are called {name!r}", param="tools")
    return tools


def read_choice(field: ToolChoiceField | None, tools: Sequence[Tool]) -> tuple[ToolMode, str | None]:
    """Return whether tools are to be called, and the one that has to be."""
    if field is not None and (field.type == "tool") != (field.name is not None):
        raise InvalidRequestError(
            'tool_choice.name has to be there if tool_choice.type is "tool", and only then', param="tool_choice.name"
        )
    if field is not None and field.type in ("any", "tool") and not tools:
        raise InvalidRequestError(f'tool_choice can be "{field.type}" only with tools', param="tool_choice")
    if not tools or (field is not None and field.type == "none"):
        return ToolMode.NONE, None
    if field is None or field.type == "auto":
        return ToolMode.AUTO, None
    if field.name is not None and field.name not in {tool.name for tool in tools}:
        raise InvalidRequestError(
            f"tool_choice names a tool that is not there: {field.name!r:.200}", param="tool_choice.name"
        )
    return ToolMode.REQUIRED, field.name
