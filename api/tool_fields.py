"""The fields of a body that are about tools, as OpenAI's API has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from llamalane.api.reply import Tool, ToolMode
from llamalane.errors import InvalidRequestError

MAX_TOOLS = 512
"""So many tools may a request have."""

_NESTED = '{"type": "function", "function": {"name": …}}'
_FLAT = '{"type": "function", "name": …}'


class FunctionField(BaseModel):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(BaseModel):
    """A tool. Functions are the only ones there are."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    type: Literal["function"]
    function: FunctionField


def read_tools(fields: Sequence[ToolField]) -> list[Tool]:
    """Return the tools of a body; raises `InvalidRequestError` for those that cannot be called."""
    return read_functions([field.function for field in fields], "tools[{}].function")


def read_functions(functions: Sequence[FunctionField], where: str, *, strict: bool = False) -> list[Tool]:
    """Return the tools that `functions` are, whose places in the body are `where`, with their number for `{}`.

    `strict` is for those that do not say whether they are. Raises `InvalidRequestError` for what cannot be called.
    """
    for name, count in Counter(function.name for function in functions).items():
        if count > 1:
            raise InvalidRequestError(f"two tools are called {name!r}", param="tools")
    return [_read_tool(function, where.format(index), strict) for index, function in enumerate(functions)]


def _read_tool(function: FunctionField, where: str, strict: bool) -> Tool:
    parameters = function.parameters
    if parameters is not None and parameters.get("type", "object") != "object":
        raise InvalidRequestError(
            f'{where}.parameters must be a JSON schema of the type "object"', param=f"{where}.parameters"
        )
    return Tool(
        name=function.name,
        description=function.description,
        parameters=parameters,
        strict=strict if function.strict is None else function.strict,
        field=f"{where}.parameters",
    )


def read_choice(value: Any, tools: Sequence[Tool], *, flat: bool = False) -> tuple[ToolMode, str | None]:
    """Return whether tools are to be called, and the one that has to be; `value` is a body's `tool_choice`.

    With `flat`, a function is named beside its type, and not within it, and "auto" needs no tools.
    """
    if not tools:
        if value not in (None, "none") and not (flat and value == "auto"):
            raise InvalidRequestError("tool_choice is only allowed with tools", param="tool_choice")
        return ToolMode.NONE, None
    if value is None:
        return ToolMode.AUTO, None
    if isinstance(value, str) and value in {mode.value for mode in ToolMode}:
        return ToolMode(value), None
    name = _flatly_named(value) if flat else _named(value)
    if name is None:
        raise InvalidRequestError(
            f'tool_choice must be "none", "auto", "required", or {_FLAT if flat else _NESTED}; got {value!r:.200}',
            param="tool_choice",
        )
    if name not in {tool.name for tool in tools}:
        raise InvalidRequestError(f"tool_choice names a tool that is not there: {name!r:.200}", param="tool_choice")
    return ToolMode.REQUIRED, name


def _named(value: Any) -> str | None:
    if not isinstance(value, dict) or value.keys() != {"type", "function"} or value["type"] != "function":
        return None
    function = value["function"]
    name = function.get("name") if isinstance(function, dict) and function.keys() == {"name"} else None
    return name if isinstance(name, str) else None


def _flatly_named(value: Any) -> str | None:
    if not isinstance(value, dict) or value.keys() != {"type", "name"} or value["type"] != "function":
        return None
    name = value["name"]
    return name if isinstance(name, str) else None
