"""What a chat template can write beside plain messages: found out by letting it write a small conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llamalane.errors import ChatTemplateError

Render = Callable[..., str]
"""Renders messages, with variables by name; raises `ChatTemplateError` when the template refuses them."""

# The function that the conversation calls, and its one argument: words that no template says by itself.
_NAME, _KEY, _VALUE = "find_weather", "place", "Timbuktu"
_QUESTION = {"role": "user", "content": "Question"}
_IDS = ("probe0001", "probe0002")  # some templates insist on nine letters and digits
_RESULT = "The result of the call"
_SYSTEM = "Instructions of the system"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Find the weather.",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "Where"}},
            "required": [_KEY],
        },
    },
}
_ARGUMENTS = {_KEY: _VALUE}
_AS_JSON = re.compile(rf'"{_KEY}"\s*:\s*"{_VALUE}"')


@dataclass(frozen=True, slots=True)
class TemplateAbilities:
    """What a chat template can write.

    Attributes:
        system: messages of the role `system`, wherever it puts them.
        tools: descriptions of tools, given as the variable `tools`.
        call: how it writes a call of `find_weather` with the arguments `{"place": "Timbuktu"}`, and what stands around
            it; empty if it cannot.
        several_calls: more than one call in a message.
        arguments_as_text: a call's arguments are to be given as JSON in a text, not as a mapping.
        null_content: a message with calls has to have no content, rather than an empty one.
        results: messages of the role `tool`.
    """

    system: bool
    tools: bool
    call: str
    several_calls: bool
    arguments_as_text: bool
    null_content: bool
    results: bool


@dataclass(frozen=True, slots=True)
class _CallStyle:
    """How a message with calls is to be given to a template."""

    as_text: bool
    null_content: bool

    def message(self, calls: int = 1) -> dict[str, Any]:
        arguments = json.dumps(_ARGUMENTS) if self.as_text else _ARGUMENTS
        function = {"name": _NAME, "arguments": arguments}
        tool_calls = [{"id": name, "type": "function", "function": function} for name in _IDS[:calls]]
        return {"role": "assistant", "content": None if self.null_content else "", "tool_calls": tool_calls}


_STYLES = [_CallStyle(as_text, null) for as_text in (False, True) for null in (False, True)]
_PLAIN = _STYLES[0]


def find_abilities(render: Render) -> TemplateAbilities:
    """Return what the template behind `render` can write."""
    style, call = _find_style(render)
    return TemplateAbilities(
        system=_SYSTEM in _try(render, [{"role": "system", "content": _SYSTEM}, _QUESTION]),
        tools=_NAME in _try(render, [_QUESTION], tools=[_TOOL]),
        call=call,
        several_calls=bool(call) and _try(render, [_QUESTION, style.message(2), *_results(2)]).count(_VALUE) > 1,
        arguments_as_text=style.as_text,
        null_content=style.null_content,
        results=_RESULT in _try(render, [_QUESTION, style.message(), *_results()]),
    )


def _find_style(render: Render) -> tuple[_CallStyle, str]:
    """Return how calls are to be given to the template, and what it makes of one; `""` if nothing comes of any."""
    written = {style: _try(render, [_QUESTION, style.message(), *_results()]) for style in _STYLES}
    whole = [style for style, text in written.items() if _NAME in text and _VALUE in text]
    as_json = [style for style in whole if _AS_JSON.search(written[style])]
    for style in (*as_json, *whole):
        return style, written[style]
    return _PLAIN, ""


def _results(count: int = 1) -> list[Mapping[str, Any]]:
    return [{"role": "tool", "tool_call_id": name, "name": _NAME, "content": _RESULT} for name in _IDS[:count]]


def _try(render: Render, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    try:
        return render(messages, **variables)
    except ChatTemplateError:
        return ""
