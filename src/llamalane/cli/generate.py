"""Generates one text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio

from llamalane.scheduler import Engine, EngineConfig, Result
from llamalane.streams import SamplingParameters

if TYPE_CHECKING:
    from rich.console import Console


def generate(config: EngineConfig, prompt: str, sampling: SamplingParameters, *, chat: bool, console: Console) -> None:
    """Print the text that follows `prompt` as it comes, then on `console` what it took; `-` reads the prompt."""
    text = sys.stdin.read() if prompt == "-" else prompt
    result = anyio.run(_generate, config, text, sampling, chat)
    console.print(_summary(result), style="dim")


async def _generate(config: EngineConfig, prompt: str, sampling: SamplingParameters, chat: bool) -> Result:
    async with Engine(config) as engine:
        if chat:
            handle = await engine.submit_chat([{"role": "user", "content": prompt}], sampling=sampling)
        else:
            handle = await engine.submit(prompt, sampling=sampling)
        async for text in handle:
            print(text, end="", flush=True)
        print(flush=True)
        return await handle.result()


def _summary(result: Result) -> str:
    usage, timings = result.usage, result.timings
    decoding = timings.total - timings.first_token
    speed = f", {(usage.completion_tokens - 1) / decoding:.1f} tokens/s" if decoding > 0 else ""
    return (
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens, first after {timings.first_token:.2f} s{speed}, "
        f"finish reason {result.finish_reason.value}, seed {result.seed}"
    )
