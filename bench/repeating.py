"""Prompts whose answers repeat them, and such as have answers of their own."""

from __future__ import annotations

import random

from llamalane.bench.workload import random_text

WORDS = 60
"""A text that is repeated has so many words."""
_BEGUN = 8
"""So many of them are there when an output goes on with it."""
QUESTIONS = (
    "Tell me a story about a lighthouse keeper and a storm.",
    "Why is the sky blue during the day and red in the evening?",
    "Write a letter to a friend who has moved to another country.",
    "How do I bake bread without an oven?",
    "What should a small town do about its empty shops?",
    "Explain how a bicycle stays upright, to a child of ten.",
    "Describe a market in the morning, before the customers come.",
    "Give me advice for my first week in a new job.",
)


def repeating_text(seed: int, number: int) -> str:
    """Return a text, the same text again, and as much of it once more as to tell what goes on."""
    text = random_text(random.Random(f"{seed}/{number}"), WORDS)
    start = " ".join(text.split()[:_BEGUN])
    return f"{text}\n\n{text}\n\n{start}"
