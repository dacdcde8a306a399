"""Integers and strings that look alike and must not be mixed up."""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", str)
"""Names one request in logs, errors and answers; unique within an engine."""

SequenceId = NewType("SequenceId", int)
"""A request's row in a llama context, 0 … sequences − 1 (llama.h: `llama_seq_id`)."""

MAX_SEQUENCES = 256
"""llama.cpp's bound on sequences in one context (LLAMA_MAX_SEQ)."""

Level = NewType("Level", int)
"""A priority: 1 is the most urgent, 5 the least."""

MOST_URGENT = Level(1)
LEAST_URGENT = Level(5)

StepNumber = NewType("StepNumber", int)
"""Counts the steps of one lane, from 1."""

PlanVersion = NewType("PlanVersion", int)
"""Counts the plans made for one lane, from 1; 0 stands before the first."""
