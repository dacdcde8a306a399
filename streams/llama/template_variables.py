"""The names that a chat template finds set."""

TEMPLATE_VARIABLES = frozenset(
    {
        *("add_generation_prompt", "bos_token", "eos_token", "function_call", "functions", "messages"),
        *("raise_exception", "strftime_now", "tool_choice", "tools"),
    }
)
"""What a template is given in any case, so that nobody else can set it; `tools` excepted."""
