"""Outputs as models of each family write them, and what they say."""

from __future__ import annotations

from dataclasses import dataclass

from llamalane.api.reply import Call, Reply, ToolFormat

WEATHER, TIME, SAVE = "get_weather", "get_time", "save_file"
NAMES = frozenset({WEATHER, TIME, SAVE})


@dataclass(frozen=True)
class Recorded:
    """An output, and the reply that it is."""

    format: ToolFormat
    text: str
    reply: Reply


def calls(*called: tuple[str, str], content: str = "", reasoning: str = "") -> Reply:
    """A reply with calls, whose ids count from 0."""
    numbered = enumerate(called)
    return Reply(content, reasoning, tuple(Call(f"id{number}", name, text) for number, (name, text) in numbered))


HERMES = ToolFormat.HERMES
LLAMA = ToolFormat.LLAMA3_JSON
MISTRAL = ToolFormat.MISTRAL
ARGS = ToolFormat.MISTRAL_ARGS

CODE = r"""{"path": "a.py", "text": "print(\"</tool_call> [TOOL_CALLS] {\")\nx = {'k': [1, 2]}\n# \\"}"""

CALLED = (
    # Qwen 2.5, Qwen 3, Hermes 3.
    Recorded(
        HERMES,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>',
        calls((WEATHER, '{"city": "Oslo", "unit": "C"}')),
    ),
    Recorded(
        HERMES,
        "I'll look that up for both cities.\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Asia/Tokyo"}}\n</tool_call>',
        calls((WEATHER, '{"city": "Oslo"}'), (TIME, '{"zone": "Asia/Tokyo"}'),
              content="I'll look that up for both cities."),
    ),
    Recorded(
        HERMES,
        '<think>\nThe user wants the weather. I need <tool_call> for that.\n</think>\n\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Tromsø"}}\n</tool_call>',
        calls((WEATHER, '{"city": "Tromsø"}'), reasoning="The user wants the weather. I need <tool_call> for that."),
    ),
    Recorded(  # Hermes 2 Pro was taught to write the arguments first.
        HERMES,
        '<tool_call>\n{"arguments": {"city": "Oslo"}, "name": "get_weather"}\n</tool_call>\n',
        calls((WEATHER, '{"city": "Oslo"}')),
    ),
    Recorded(HERMES, f'<tool_call>\n{{"name": "save_file", "arguments": {CODE}}}\n</tool_call>', calls((SAVE, CODE))),
    Recorded(HERMES, '<tool_call>{"name":"get_time","arguments":{}}</tool_call>', calls((TIME, "{}"))),
    Recorded(HERMES, '<tool_call>\n{"name": "get_time"}\n</tool_call>', calls((TIME, "{}"))),
    Recorded(HERMES, '<tool_call>\n{"name": "get_time", "arguments": null}\n</tool_call>', calls((TIME, "{}"))),
    Recorded(
        HERMES,
        r'<tool_call>' '\n' r'{"name": "get_time", "arguments": "{\"zone\": \"UTC\"}"}' '\n</tool_call>',
        calls((TIME, '{"zone": "UTC"}')),
    ),
    Recorded(  # A brace too many, and the end of the tag forgotten: small models do both.
        HERMES,
        '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {"zone": "CET"}}',
        calls((TIME, '{"zone": "UTC"}'), (TIME, '{"zone": "CET"}')),
    ),
    Recorded(
        HERMES,
        '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n'
        '{"name": "get_time", "arguments": {"zone": "CET"}}\n</tool_call>\nThat is all.',
        calls((TIME, '{"zone": "UTC"}'), (TIME, '{"zone": "CET"}'), content="That is all."),
    ),
    Recorded(  # Cut off by max_tokens.
        HERMES,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os',
        calls((WEATHER, '{"city": "Os')),
    ),
    # Llama 3.1, 3.2, 3.3.
    Recorded(
        LLAMA, '{"name": "get_weather", "parameters": {"city": "Oslo"}}', calls((WEATHER, '{"city": "Oslo"}'))
    ),
    Recorded(
        LLAMA,
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}',
        calls((WEATHER, '{"city": "Oslo"}')),
    ),
    Recorded(
        LLAMA,
        '\n\n{"name": "get_time", "parameters": {}}; {"name": "get_weather", "parameters": {"city": "Oslo"}}\n',
        calls((TIME, "{}"), (WEATHER, '{"city": "Oslo"}')),
    ),
    Recorded(
        LLAMA,
        'Let me see.<|python_tag|>{"name": "get_time", "parameters": {"zone": "UTC"}}',
        calls((TIME, '{"zone": "UTC"}'), content="Let me see."),
    ),
    Recorded(LLAMA, f'{{"name": "save_file", "parameters": {CODE}}}', calls((SAVE, CODE))),
    # Mistral 7B v0.3, Mistral Nemo, Mixtral 8x22B.
    Recorded(
        MISTRAL,
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
        calls((WEATHER, '{"city": "Oslo"}')),
    ),
    Recorded(
        MISTRAL,
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "9cKzBqXwE"}, '
        '{"name": "get_time", "arguments": {"zone": "Asia/Tokyo"}}]',
        calls((WEATHER, '{"city": "Oslo"}'), (TIME, '{"zone": "Asia/Tokyo"}')),
    ),
    Recorded(
        MISTRAL,
        f'Saving it. [TOOL_CALLS][{{"name": "save_file", "arguments": {CODE}}}]',
        calls((SAVE, CODE), content="Saving it."),
    ),
    # Mistral Small 3.2, Devstral, Magistral.
    Recorded(ARGS, '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}', calls((WEATHER, '{"city": "Oslo"}'))),
    Recorded(
        ARGS,
        '[TOOL_CALLS]get_weather[CALL_ID]kC4TnD0aZ[ARGS]{"city": "Oslo"}[TOOL_CALLS]get_time[ARGS]{}',
        calls((WEATHER, '{"city": "Oslo"}'), (TIME, "{}")),
    ),
    Recorded(ARGS, '[TOOL_CALLS]get_time{"zone": "UTC"}', calls((TIME, '{"zone": "UTC"}'))),
    Recorded(
        ARGS,
        f"I save it first.\n[TOOL_CALLS]save_file[ARGS]{CODE}",
        calls((SAVE, CODE), content="I save it first."),
    ),
)  # fmt: skip

NOT_CALLED = (
    (HERMES, "There is no tool for that: <tool_call is not one."),
    (HERMES, "<tool_call>\nget_weather(city='Oslo')\n</tool_call>"),
    (HERMES, '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>'),
    (HERMES, '<tool_call>\n{"arguments": {"city": "Oslo"}}\n</tool_call>'),
    (HERMES, '<tool_call>\n{"name": "get_weather", "arguments": ["Oslo"]}\n</tool_call>'),
    (HERMES, '<tool_call>\n{"name" "get_weather"}\n</tool_call> '),
    (HERMES, '<tool_call>\n{"name": "get_wea'),
    (HERMES, '{"name": "get_weather", "arguments": {}}'),
    (LLAMA, '{"name": "Ada", "age": 36}'),
    (LLAMA, '{"name": "no_such_tool", "parameters": {}}'),
    (LLAMA, '  {"city": "Oslo"} is the answer, as {"name": "get_weather", "parameters": {}} says.\n'),
    (LLAMA, "<|python_tag|>print('hello')"),
    (LLAMA, '{"name": "get_weather", "param'),
    (MISTRAL, "[TOOL_CALLS] none are needed"),
    (MISTRAL, '[TOOL_CALLS] [{"tool": "get_weather"}]'),
    (MISTRAL, "[TOOL_CALLS][]"),
    (ARGS, '[TOOL_CALLS]get_weather[ARGS]"Oslo"'),
    (ARGS, "[TOOL_CALLS]get_weather[ARGS]"),
    (ARGS, "[TOOL_CALLS]get_weather[CALL_ID]kC4TnD0aZ"),
    (ARGS, "[TOOL_CALL"),
)
"""Outputs that look like calls, or nearly, and are none."""
