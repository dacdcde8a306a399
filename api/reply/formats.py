"""The ways in which models write calls of tools and thoughts, and how to tell which one a model has."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from llamalane.api.reply import hermes, llama, mistral
from llamalane.api.reply.calls import CallReader
from llamalane.api.reply.sink import Sink
from llamalane.api.reply.thinking import Tags

if TYPE_CHECKING:
    from llamalane.scheduler import TemplateAbilities


class ToolFormat(enum.Enum):
    """How a model writes calls. The values are those of the setting `tool_format`."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    """A list of objects."""
    MISTRAL_ARGS = "mistral_args"
    """Each call by itself."""

    @property
    def marks(self) -> tuple[str, ...]:
        """The control tokens that calls are written with."""
        return _MARKS[self]

    @property
    def several(self) -> bool:
        """Whether several calls can stand in one reply."""
        return self is not ToolFormat.LLAMA3_JSON

    def reader(self, sink: Sink, names: Set[str]) -> CallReader:
        """Return what reads calls of the tools in `names`."""
        match self:
            case ToolFormat.HERMES:
                return hermes.HermesReader(sink)
            case ToolFormat.LLAMA3_JSON:
                return llama.LlamaReader(sink, names)
            case ToolFormat.MISTRAL | ToolFormat.MISTRAL_ARGS:
                return mistral.MistralReader(sink)


_MARKS: Mapping[ToolFormat, tuple[str, ...]] = {
    ToolFormat.HERMES: (hermes.OPEN, hermes.CLOSE),
    ToolFormat.LLAMA3_JSON: (llama.TAG,),
    ToolFormat.MISTRAL: (mistral.CALLS,),
    ToolFormat.MISTRAL_ARGS: (mistral.CALLS, mistral.CALL_ID, mistral.ARGUMENTS),
}

# How a template writes the call by which its abilities are found out.
_CALLS: Mapping[ToolFormat, re.Pattern[str]] = {
    ToolFormat.HERMES: re.compile(r'<tool_call>\s*\{[^<]*"find_weather"'),
    ToolFormat.LLAMA3_JSON: re.compile(r'\{\s*"name"\s*:\s*"find_weather"\s*,\s*"parameters"\s*:\s*\{'),
    ToolFormat.MISTRAL: re.compile(r'\[TOOL_CALLS\]\s*\[\s*\{[^\[]*"find_weather"'),
    ToolFormat.MISTRAL_ARGS: re.compile(r"\[TOOL_CALLS\]\s*find_weather"),
}

TAGS: Mapping[str, Tags] = {"think": Tags("<think>", "</think>"), "mistral": Tags("[THINK]", "[/THINK]")}
"""What stands around thoughts, by the values of the setting `reasoning_format`."""


def find_tool_format(abilities: TemplateAbilities) -> ToolFormat | None:
    """Return the format in which a template describes tools and writes calls, None if it is not one of these."""
    if not (abilities.tools and abilities.results):
        return None
    return next((format for format, pattern in _CALLS.items() if pattern.search(abilities.call)), None)


def find_tags(template: str) -> Tags | None:
    """Return the tags around thoughts that a template knows, None if there are none."""
    return next((tags for tags in TAGS.values() if tags.close in template), None)
