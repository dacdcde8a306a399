from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from llamalane.errors import ChatTemplateError
from llamalane.streams.llama import TEMPLATE_VARIABLES, ChatTemplate, Model, ModelOptions
from tests.models.tiny_gguf import BOS, Kind, write_model

MESSAGES = [{"role": "user", "content": "Hello"}]
OPTIONAL = {"functions", "function_call", "tool_choice", "tools"}


@pytest.fixture
def template(tmp_path: Path) -> Iterator[Callable[[str], ChatTemplate]]:
    """Makes chat templates, each in a model of its own."""
    models: list[Model] = []

    def make(text: str) -> ChatTemplate:
        path = tmp_path / f"{len(models)}.gguf"
        write_model(path, Kind.DENSE, chat_template=text)
        models.append(Model(ModelOptions(path=path)))
        return ChatTemplate.of(models[-1])

    yield make
    for model in models:
        model.close()


def test_messages_become_one_turn_after_the_other(model: Model) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a < b & {{ c }}"},
        {"role": "assistant", "content": ""},
    ]
    expected = "<s>[system]Be brief.</s>[user]a < b & {{ c }}</s>[assistant]</s>[assistant]"
    assert ChatTemplate.of(model).render(messages) == expected


def test_the_prompt_has_the_bos_once_though_template_and_model_both_add_it(model: Model) -> None:
    text = ChatTemplate.of(model).render(MESSAGES)
    tokens = model.vocabulary.tokenize(text, add_special=True, parse_special=True)
    assert tokens[:2] == [BOS, BOS]
    assert model.vocabulary.with_one_bos(tokens).count(BOS) == 1


def test_rendering_leaves_the_messages_alone(template: Callable[[str], ChatTemplate]) -> None:
    chat = template("{% set _ = messages[0].update({'content': 'changed'}) %}{{ messages[0].content }}")
    messages = [dict(message) for message in MESSAGES]
    with contextlib.suppress(ChatTemplateError):  # the sandbox may forbid it altogether
        chat.render(messages)
    assert messages == MESSAGES


def test_a_model_without_a_template_says_what_to_use_instead(models: Mapping[Kind, Model]) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template; use completions") as caught:
        ChatTemplate.of(models[Kind.DENSE])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("text", ["{% if %}", "{{ unclosed", "{% for x in y %}", "{{ 'a' | no_such_filter }}"])
def test_a_template_that_is_not_valid_is_told_when_it_is_read(
    template: Callable[[str], ChatTemplate], text: str
) -> None:
    with pytest.raises(ChatTemplateError, match="is not valid"):
        template(text)


def test_a_template_s_own_objection_is_passed_on(model: Model) -> None:
    with pytest.raises(ChatTemplateError, match="refused the messages: no such role: pirate"):
        ChatTemplate.of(model).render([{"role": "pirate", "content": "Arr"}])


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].nothing.more }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ 'abc'.index('x') }}",
        "{{ {}.popitem() }}",
        "{{ [].pop() }}",
        "{{ range(10 ** 9) | list }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ '%d' % 'x' }}",
        "{{ messages | tojson(indent='x', sort_keys=1, separators=1) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_whatever_fails_inside_a_template_is_a_template_error(
    template: Callable[[str], ChatTemplate], text: str
) -> None:
    chat = template(text)
    with pytest.raises(ChatTemplateError, match="refused the messages"):
        chat.render(MESSAGES)


def test_variables_reach_the_template(template: Callable[[str], ChatTemplate]) -> None:
    chat = template("{{ shout }}{{ tools | length }}{{ quiet is defined }}")
    assert chat.render(MESSAGES, shout="Hey", tools=[{}, {}]) == "Hey2False"
    assert chat.render(MESSAGES, tools=[{}]) == "1False"


@pytest.mark.parametrize(
    "name", [*sorted(TEMPLATE_VARIABLES - {"functions", "function_call", "tool_choice", "tools"}), "self"]
)
def test_a_template_s_own_variables_are_nobody_s_to_set(template: Callable[[str], ChatTemplate], name: str) -> None:
    with pytest.raises(ChatTemplateError, match="multiple values"):
        template("Hi").render(MESSAGES, **{name: "x"})


def test_a_template_for_tools_is_found_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tools.gguf"
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | tojson }}"}]
    write_model(path, Kind.DENSE, chat_template=templates)
    with Model(ModelOptions(path=path)) as model:
        chat = ChatTemplate.of(model)
    assert chat.render(MESSAGES) == "plain"
    assert chat.render(MESSAGES, tools=["x"]) == '["x"]'
