"""Measures what might make llamalane quicker: each candidate, in turn with what is done now."""

from __future__ import annotations

import enum


class Candidate(enum.Enum):
    """What can be measured."""

    THREADS_SAMPLING = "threads-sampling"
    """The tokens of one step's rows, chosen on two threads."""
    ROW_ORDER = "row-order"
    """Rows in another order than that of their sequences."""
    GRAPH_REUSE = "graph-reuse"
    """Rows that keep their places from step to step, so that llama.cpp can use its graph again."""
    ONE_PASS = "one-pass"
    """A prompt's chunk in a step of its own, not in that of the decoding rows."""
    KV_TYPES = "kv-types"
    """KV cells in q8_0."""
    PROMPT_LOOKUP = "prompt-lookup"
    """Speculation on what followed the last few tokens when they stood in the sequence before."""
    EVENT_LOOP_PROCESS = "event-loop-process"
    """An event loop in a process of its own."""
    FREE_THREADING = "free-threading"
    """An interpreter without a GIL."""
