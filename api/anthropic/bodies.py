"""Request bodies with Anthropic's fields."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from llamalane.api.anthropic.blocks import (
    MAX_MESSAGES,
    BlocksMessage,
    Content,
    check_content,
    check_messages,
    read_turns,
)
from llamalane.api.anthropic.tool_fields import CustomToolField, ToolChoiceField, read_choice, read_tools
from llamalane.api.field_schemas import between, close, strings
from llamalane.api.reply import Question, Turn
from llamalane.api.sampling_fields import SampledBody
from llamalane.api.schemas import MAX_USER_LENGTH, check_extra_fields
from llamalane.api.tool_fields import MAX_TOOLS
from llamalane.errors import InvalidRequestError, ThreadsUnsupportedError
from llamalane.scheduler import MAX_OUTPUT_TOKENS, MAX_STOP_LENGTH, MAX_STOP_STRINGS, Grammar, GrammarPart

FORM = "output_config.format"
# Fields that ask for what is not supported, each with the values that ask for nothing; null never does.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "compaction": (),
    "container": (),
    "diagnostics": (),
    "fallbacks": ([],),
    "inference_geo": (),
    "mcp_servers": ([],),
    "output_format": (),
    "speed": ("standard",),
    "thread": (),
    "user_profile_id": (),
}
_HARMLESS = frozenset({"cache_control"})
_EDIT_OF_THOUGHTS = "clear_thinking_20251015"


class ThinkingField(BaseModel):
    """Whether the model thinks before it answers.

    `budget_tokens` reaches chat templates that know `thinking_budget`; `display` says whether the thoughts are told.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormatField(BaseModel):
    """The form of the answer: JSON that fits a schema."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfigField(BaseModel):
    """How hard the model tries, and the form of its answer."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormatField | None = None


class EditField(BaseModel):
    """What is to be left out of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str


class ContextManagementField(BaseModel):
    """What is to be left out of a conversation. Of earlier thoughts, the chat template leaves out what it does."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    edits: list[EditField] | None = None

    def check(self) -> None:
        """Raise `InvalidRequestError` for what the chat template does not do by itself."""
        for index, edit in enumerate(self.edits or ()):
            if edit.type != _EDIT_OF_THOUGHTS:
                param = f"context_management.edits[{index}]"
                raise InvalidRequestError(
                    f"{param} is of the type {edit.type!r:.100}, which is not supported", param=param
                )


class MessageMetadataField(BaseModel):
    """For whom a client asks."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    user_id: Annotated[str, Field(max_length=MAX_USER_LENGTH)] | None = None


class AskingBody(BaseModel):
    """What a body says of the question: a conversation, the tools in it, and how the model is to answer."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, json_schema_extra=close)

    model: str | None = None
    system: Content | None = None
    messages: Annotated[list[BlocksMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[CustomToolField] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: ToolChoiceField | None = None
    thinking: ThinkingField | None = None
    output_config: OutputConfigField | None = None
    context_management: ContextManagementField | None = None

    @functools.cached_property
    def question(self) -> Question:
        """What is asked; raises `InvalidRequestError` for what cannot be."""
        tools = read_tools(self.tools or ())
        mode, tool = read_choice(self.tool_choice, tools)
        turns, prefill = self._turns()
        thinking = self.thinking
        disabled = thinking is not None and thinking.type == "disabled"
        return Question(
            turns=turns,
            tools=tools,
            mode=mode,
            tool=tool,
            parallel=self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use,
            form=self._form(),
            variables=self._variables(),
            effort="none" if disabled else self._effort,
            effort_field="thinking" if disabled else "output_config.effort",
            thinking_field="thinking" if self._demands_thoughts else None,
            thoughts=thinking is None or thinking.display != "omitted",
            prefill=prefill,
        )

    def check_question(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or do not go together."""
        extra = self.model_extra or {}
        if extra.get("thread") is not None:
            raise ThreadsUnsupportedError
        check_extra_fields(extra, unsupported=_UNSUPPORTED, harmless=_HARMLESS)
        if self.thinking is not None and self.thinking.budget_tokens is not None and not self._demands_thoughts:
            raise InvalidRequestError(
                "thinking.budget_tokens is only allowed when thinking.type is enabled", param="thinking.budget_tokens"
            )
        check_content(self.system or (), "system", "system")
        check_messages(self.messages)
        if self.context_management is not None:
            self.context_management.check()
        _ = self.question

    @property
    def _demands_thoughts(self) -> bool:
        return self.thinking is not None and self.thinking.type == "enabled"

    @property
    def _effort(self) -> str | None:
        return None if self.output_config is None else self.output_config.effort

    def _turns(self) -> tuple[list[Turn], str]:
        """Return the conversation, and the beginning of the answer if the last message is the assistant's."""
        turns = read_turns(self.system or (), self.messages)
        if turns[-1].role != "assistant":
            return turns, ""
        *turns, last = turns
        fault = None
        if last.calls or last.reasoning is not None:
            fault = "it can have nothing but text"
        elif all(turn.role == "system" for turn in turns):
            fault = "there has to be a user's message before it"
        elif last.text and self._demands_thoughts:
            fault = "the model cannot think before it: leave it out, or let thinking be disabled"
        elif last.text and self._form() is not None:
            fault = f"{FORM} would hold for the rest alone: leave one of them out"
        if fault is not None:
            param = f"messages[{len(self.messages) - 1}]"
            raise InvalidRequestError(f"the answer begins with {param}, which is the assistant's: {fault}", param=param)
        return turns, last.text

    def _form(self) -> GrammarPart | None:
        if self.output_config is None or self.output_config.format is None:
            return None
        try:
            return GrammarPart(FORM, Grammar.json_schema(self.output_config.format.json_schema))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{FORM} is not valid: {error}", param=FORM) from None

    def _variables(self) -> dict[str, Any]:
        """Return the variables that ask a template to let the model think; one that does not know them ignores them."""
        if self.thinking is None or self.thinking.type == "disabled":
            return {}
        variables: dict[str, Any] = {"enable_thinking": True}
        if self.thinking.budget_tokens is not None:
            variables["thinking_budget"] = self.thinking.budget_tokens
        return variables


def _tier(tier: str) -> str:
    """Return OpenAI's word for a tier: neither of Anthropic's asks for another level than the default."""
    return "default" if tier == "standard_only" else tier


class MessagesBody(AskingBody, SampledBody):
    """The body of `/v1/messages`. Beside Anthropic's fields there are ours and llama.cpp's, as everywhere."""

    max_tokens: Annotated[int, between(1, MAX_OUTPUT_TOKENS)]
    stop_sequences: Annotated[list[str] | None, strings(MAX_STOP_STRINGS, MAX_STOP_LENGTH, single=False)] = None
    metadata: MessageMetadataField | None = None
    service_tier: Annotated[Literal["auto", "standard_only"], AfterValidator(_tier)] | None = None

    @property
    def end_user(self) -> str | None:
        """Whom the client names as the one for whom it asks."""
        return None if self.metadata is None else self.metadata.user_id

    @property
    def most_tokens(self) -> int | None:
        """How many tokens may be generated."""
        return self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which the output ends."""
        return tuple(self.stop_sequences or ())

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or out of range."""
        super().check()
        self.check_question()
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            raise InvalidRequestError(
                f"thinking.budget_tokens must be less than max_tokens, which is {self.max_tokens}; got {budget}",
                param="thinking.budget_tokens",
            )

    def client_name(self, param: str | None) -> str | None:
        """Return what the client called the engine's parameter `param`."""
        if param == "grammar":
            return FORM if self.question.form is not None else "tools"
        return {"prompt": "messages", "stop": "stop_sequences"}.get(param or "", param)


class CountTokensBody(AskingBody):
    """The body of `/v1/messages/count_tokens`."""

    def check(self) -> None:
        """Raise `InvalidRequestError` for fields that are unknown, not supported, or do not go together."""
        self.check_question()
