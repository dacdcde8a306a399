"""Chat templates in the manner of those that models of each family bring along, with what these insist on."""

from __future__ import annotations

from llamalane.scheduler import ChatTemplate

PLAIN = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] + '<|im_end|>' }}
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""
"""Knows messages, and nothing of tools."""

HERMES = """\
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif -%}
Functions: <tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools><|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% elif message.role != 'system' or not tools -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""

THINKING = (
    HERMES
    + """\
{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false -%}
<think>

</think>

{% endif -%}"""
)
"""Lets the model begin its thoughts by itself, or closes them at once."""

ALWAYS_THINKING = (
    PLAIN
    + """\
{%- if add_generation_prompt -%}
<think>
{% endif -%}
{#- </think> is the model's to write. -#}"""
)
"""Opens the thoughts itself."""

EFFORT = PLAIN + "{% if reasoning_effort is defined %}Effort: {{ reasoning_effort }}{% endif %}"

LLAMA = """\
{%- if messages[0]['role'] == 'system' -%}
{%- set system = messages[0]['content'] -%}
{%- set messages = messages[1:] -%}
{%- else -%}
{%- set system = '' -%}
{%- endif -%}
<|start_header_id|>system<|end_header_id|>

{{ system }}
{%- if tools is not none %}
Answer a function as {"name": its name, "parameters": its arguments}.
{%- for tool in tools %}
{{ tool | tojson(indent=4) }}
{%- endfor %}
{%- endif -%}
<|eot_id|>
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
<|start_header_id|>ipython<|end_header_id|>

{{ message.content | tojson }}<|eot_id|>
{%- elif 'tool_calls' in message -%}
{%- if message.tool_calls | length != 1 -%}
{{ raise_exception('one call at a time') }}
{%- endif -%}
{%- set call = message.tool_calls[0].function -%}
<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- else -%}
<|start_header_id|>{{ message['role'] }}<|end_header_id|>

{{ message['content'] | trim }}<|eot_id|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start_header_id|>assistant<|end_header_id|>

{% endif -%}"""

_MISTRAL_HEAD = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- if tools and message == (messages | selectattr('role', 'equalto', 'user') | list)[-1] -%}
[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- endif -%}
[INST]{{ message.content }}[/INST]
{%- elif message.role == 'system' -%}
[SYSTEM_PROMPT]{{ message.content }}[/SYSTEM_PROMPT]
{%- elif message.tool_calls is defined -%}
"""
_MISTRAL_TAIL = """\
{{- eos_token -}}
{%- elif message.role == 'assistant' -%}
{{ message.content + eos_token }}
{%- else -%}
{%- if message.tool_call_id | length != 9 -%}{{ raise_exception('an id has nine letters') }}{%- endif -%}
[TOOL_RESULTS]{{ message.tool_call_id }}[TOOL_CONTENT]{{ message.content }}[/TOOL_RESULTS]
{%- endif -%}
{%- endfor -%}"""

MISTRAL = (
    _MISTRAL_HEAD
    + """\
[TOOL_CALLS][
{%- for call in message.tool_calls -%}
{%- if call.id | length != 9 -%}{{ raise_exception('an id has nine letters') }}{%- endif -%}
{{ (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last }}
{%- endfor -%}
]
"""
    + _MISTRAL_TAIL
)

MISTRAL_ARGS = (
    _MISTRAL_HEAD
    + """\
{%- for call in message.tool_calls -%}
[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor -%}
"""
    + _MISTRAL_TAIL
    + "{#- [THINK] and [/THINK] stand around thoughts. -#}"
)

TEXT_ARGUMENTS = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' and message['content'] is none -%}
{%- for call in message['tool_calls'] -%}
{{ '<call>' + call['function']['name'] + ' ' + call['function']['arguments'] + '</call>' }}
{%- endfor -%}
{%- elif message['role'] == 'tool' -%}
{{ '<output>' + message['content'] + '</output>' }}
{%- else -%}
{{ '<' + message['role'] + '>' + message['content'] }}
{%- endif -%}
{%- endfor -%}"""
"""Puts arguments together as texts, and looks for calls only where there is no content; describes no tools."""

NO_SYSTEM = """\
{%- for message in messages -%}
{%- if message.role not in ['user', 'assistant'] -%}{{ raise_exception('no such role: ' + message.role) }}{%- endif -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('take turns') }}{%- endif -%}
<turn>{{ message.role }}: {{ message.content }}
{%- endfor -%}"""
"""Has no system, and wants user and assistant to take turns."""


def template_of(source: str) -> ChatTemplate:
    """A template with BOS and EOS tokens."""
    return ChatTemplate(source, bos="<s>", eos="</s>")
