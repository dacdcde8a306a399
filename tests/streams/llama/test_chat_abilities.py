"""What templates can write is found out by letting them write it."""

from __future__ import annotations

import pytest

from llamalane.streams.llama import ChatTemplate
from tests.models import chat_templates as templates
from tests.models.chat_templates import template_of


def test_a_template_for_messages_alone_has_no_tools() -> None:
    abilities = template_of(templates.PLAIN).abilities
    assert abilities.system
    assert not abilities.tools
    assert abilities.call == ""
    assert not abilities.several_calls


@pytest.mark.parametrize(
    ("source", "call"),
    [
        (templates.HERMES, '<tool_call>\n{"name": "find_weather", "arguments": {"place": "Timbuktu"}}\n</tool_call>'),
        (templates.LLAMA, '{"name": "find_weather", "parameters": {"place": "Timbuktu"}}<|eot_id|>'),
        (templates.MISTRAL, '[TOOL_CALLS][{"name": "find_weather", "arguments": {"place": "Timbuktu"}, "id"'),
        (templates.MISTRAL_ARGS, '[TOOL_CALLS]find_weather[ARGS]{"place": "Timbuktu"}</s>'),
    ],
)
def test_a_template_that_has_tools_shows_how_it_writes_a_call(source: str, call: str) -> None:
    abilities = template_of(source).abilities
    assert abilities.tools
    assert abilities.results
    assert abilities.system
    assert call in abilities.call
    assert not abilities.arguments_as_text
    assert not abilities.null_content


def test_a_template_that_takes_one_call_at_a_time_is_known() -> None:
    assert not template_of(templates.LLAMA).abilities.several_calls
    assert template_of(templates.HERMES).abilities.several_calls


def test_a_template_that_wants_texts_and_no_content_is_known() -> None:
    abilities = template_of(templates.TEXT_ARGUMENTS).abilities
    assert abilities.arguments_as_text
    assert abilities.null_content
    assert abilities.results
    assert '<call>find_weather {"place": "Timbuktu"}</call>' in abilities.call
    assert not abilities.tools


def test_a_template_without_a_system_is_known() -> None:
    abilities = template_of(templates.NO_SYSTEM).abilities
    assert not abilities.system
    assert not abilities.results


def test_a_template_for_tools_takes_the_place_of_the_plain_one() -> None:
    template = ChatTemplate("plain{{ messages[0].content }}", for_tools=templates.HERMES)
    assert template.render([{"role": "user", "content": "Hi"}]) == "plainHi"
    assert "<tools>" in template.render([{"role": "user", "content": "Hi"}], tools=[{}])
    assert "<tool_response>" in template.render([{"role": "tool", "content": "Hi"}])
    assert template.abilities.tools
    assert "<tools>" in template.source


@pytest.mark.parametrize("source", ["{{ raise_exception('never') }}", "nothing", "{{ 1 / 0 }}"])
def test_a_template_that_can_do_nothing_does_no_harm(source: str) -> None:
    abilities = template_of(source).abilities
    assert not any((abilities.system, abilities.tools, abilities.call, abilities.results))
