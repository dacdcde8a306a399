"""A model's own chat template: messages to prompt text."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

from jinja2 import TemplateError

from llamalane.errors import ChatTemplateError
from llamalane.streams.llama.chat_abilities import TemplateAbilities, find_abilities
from llamalane.streams.llama.library import library
from llamalane.streams.llama.model import Model


class ChatTemplate:
    """A Jinja template, run in a sandbox; `for_tools` takes its place in conversations that have tools.

    Raises `ChatTemplateError` when one of them is not valid.
    """

    def __init__(self, source: str, *, bos: str = "", eos: str = "", for_tools: str | None = None) -> None:
        self.source = source + (for_tools or "")
        """All that the templates say."""
        self._plain = _formatter(source, bos, eos)
        self._for_tools = self._plain if for_tools is None else _formatter(for_tools, bos, eos)

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return the template that a model brings along; raises `ChatTemplateError` when it has none."""
        source = model.chat_template()
        if source is None:
            raise ChatTemplateError("the model has no chat template; use completions instead of chat")
        vocabulary = model.vocabulary
        bos, eos = vocabulary.text_of(vocabulary.bos), vocabulary.text_of(vocabulary.eos)
        return cls(source, bos=bos, eos=eos, for_tools=model.chat_template("tool_use"))

    @functools.cached_property
    def abilities(self) -> TemplateAbilities:
        """What the template can write beside plain messages; found out at the first time of asking."""
        return find_abilities(self.render)

    def render(self, messages: Sequence[Mapping[str, Any]], /, **variables: Any) -> str:
        """Return the prompt for `messages`, each with a `role` and a `content`.

        The template sees `variables` by their names, among them `tools`; none of the others may be one of
        `TEMPLATE_VARIABLES`. Raises `ChatTemplateError` with the template's own words when it refuses the messages.
        """
        about_tools = variables.get("tools") or any(
            message.get("role") == "tool" or "tool_calls" in message for message in messages
        )
        formatter = self._for_tools if about_tools else self._plain
        try:
            return str(formatter(messages=[dict(message) for message in messages], **variables).prompt)
        # A template can fail in any way that a program can: its own raise_exception is a ValueError.
        except Exception as error:
            raise ChatTemplateError(f"the model's chat template refused the messages: {error}") from error


def _formatter(source: str, bos: str, eos: str) -> Any:
    try:
        return library().chat_format.Jinja2ChatFormatter(template=source, eos_token=eos, bos_token=bos)
    except TemplateError as error:
        raise ChatTemplateError(f"the model's chat template is not valid: {error}") from error
