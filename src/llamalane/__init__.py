"""llamalane: a scheduling engine for llama.cpp.

Each request carries a priority, and the engine decides, decode step by decode step, whose tokens come next. Names are
loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llamalane.scheduler import BlockingEngine, BlockingRequestHandle, Engine, EngineConfig, RequestHandle, Result
    from llamalane.streams import FinishReason, Grammar, SamplingParameters

__version__ = "0.1.0"

_HOMES = {
    "BlockingEngine": "llamalane.scheduler",
    "BlockingRequestHandle": "llamalane.scheduler",
    "Engine": "llamalane.scheduler",
    "EngineConfig": "llamalane.scheduler",
    "FinishReason": "llamalane.streams",
    "Grammar": "llamalane.streams",
    "RequestHandle": "llamalane.scheduler",
    "Result": "llamalane.scheduler",
    "SamplingParameters": "llamalane.streams",
}

__all__ = [
    "BlockingEngine",
    "BlockingRequestHandle",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "Grammar",
    "RequestHandle",
    "Result",
    "SamplingParameters",
]


if not TYPE_CHECKING:  # a type checker knows all names, and shall complain of others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
