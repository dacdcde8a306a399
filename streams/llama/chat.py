"""A model's own chat template: messages to prompt text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from llamalane.errors import ChatTemplateError
from llamalane.streams.llama.library import library
from llamalane.streams.llama.model import Model


class ChatTemplate:
    """The Jinja template that a model brings along, run in a sandbox.

    Raises `ChatTemplateError` when the model has none or it is not valid.
    """

    def __init__(self, model: Model) -> None:
        template = model.chat_template
        if template is None:
            raise ChatTemplateError("the model has no chat template; use completions instead of chat")
        vocabulary = model.vocabulary
        try:
            self._formatter = library().chat_format.Jinja2ChatFormatter(
                template=template,
                eos_token=vocabulary.text_of(vocabulary.eos),
                bos_token=vocabulary.text_of(vocabulary.bos),
            )
        except TemplateError as error:
            raise ChatTemplateError(f"the model's chat template is not valid: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt for `messages`, each with a `role` and a `content`.

        Raises `ChatTemplateError` with the template's own words when it refuses them.
        """
        try:
            return str(self._formatter(messages=[dict(message) for message in messages]).prompt)
        # A template can fail in any way that a program can: its own raise_exception is a ValueError.
        except Exception as error:
            raise ChatTemplateError(f"the model's chat template refused the messages: {error}") from error
