"""The scheduler: whose tokens come next, and the engine that carries it out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from llamalane.ids import LEAST_URGENT, MOST_URGENT
from llamalane.kvcache import CellUse, Holding
from llamalane.scheduler.blocking import BlockingEngine
from llamalane.scheduler.blocking_handle import BlockingRequestHandle
from llamalane.scheduler.changes import Changes
from llamalane.scheduler.counters import Counters
from llamalane.scheduler.embedding import EmbedOptions, Relevance
from llamalane.scheduler.engine import Engine
from llamalane.scheduler.events import Event, EventKind, Observer
from llamalane.scheduler.explain import Explanation
from llamalane.scheduler.handle import Progress, RequestHandle, TextPiece
from llamalane.scheduler.histogram import HistogramSnapshot
from llamalane.scheduler.intake import ChatPrompt, SubmitOptions
from llamalane.scheduler.live_view import LiveView, Occupant
from llamalane.scheduler.logprobs import OutputToken, PromptLogprobs, ScoredToken, TokenLogprob
from llamalane.scheduler.measurements import LevelStatistics, Measure
from llamalane.scheduler.output import StopWhen
from llamalane.scheduler.priority import PriorityLevels
from llamalane.scheduler.recorder import FlightRecorder, StepRecord
from llamalane.scheduler.request import RequestState
from llamalane.scheduler.request_view import Outcome, RequestView
from llamalane.scheduler.result import EmbeddingResult, Result, Timings, Usage
from llamalane.scheduler.room import ParkReason
from llamalane.scheduler.served_models import ModelInfo, ServedModel
from llamalane.scheduler.sliding_histogram import Quantiles, SlidingHistogram
from llamalane.scheduler.spelling import Token
from llamalane.scheduler.standing import Standing
from llamalane.scheduler.statistics import EngineState, EngineStatistics, LaneStatistics
from llamalane.streams import (
    MAX_OUTPUT_TOKENS,
    MAX_SEED,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    FinishReason,
    Grammar,
    GrammarPart,
    Parking,
    SamplingParameters,
)

if TYPE_CHECKING:
    from llamalane.scheduler.config import (
        EngineConfig,
        KVConfig,
        LaneConfig,
        LookupConfig,
        ModelConfig,
        QueueConfig,
        SchedulerConfig,
        StreamsConfig,
        TenantConfig,
    )
    from llamalane.streams.llama import TEMPLATE_VARIABLES, ChatTemplate, TemplateAbilities

__all__ = [
    "LEAST_URGENT",
    "MAX_OUTPUT_TOKENS",
    "MAX_SEED",
    "MAX_STOP_LENGTH",
    "MAX_STOP_STRINGS",
    "MOST_URGENT",
    "TEMPLATE_VARIABLES",
    "BlockingEngine",
    "BlockingRequestHandle",
    "CellUse",
    "Changes",
    "ChatPrompt",
    "ChatTemplate",
    "Counters",
    "EmbedOptions",
    "EmbeddingResult",
    "Engine",
    "EngineConfig",
    "EngineState",
    "EngineStatistics",
    "Event",
    "EventKind",
    "Explanation",
    "FinishReason",
    "FlightRecorder",
    "Grammar",
    "GrammarPart",
    "HistogramSnapshot",
    "Holding",
    "KVConfig",
    "LaneConfig",
    "LaneStatistics",
    "LevelStatistics",
    "LiveView",
    "LookupConfig",
    "Measure",
    "ModelConfig",
    "ModelInfo",
    "Observer",
    "Occupant",
    "Outcome",
    "OutputToken",
    "ParkReason",
    "Parking",
    "PriorityLevels",
    "Progress",
    "PromptLogprobs",
    "Quantiles",
    "QueueConfig",
    "Relevance",
    "RequestHandle",
    "RequestState",
    "RequestView",
    "Result",
    "SamplingParameters",
    "SchedulerConfig",
    "ScoredToken",
    "ServedModel",
    "SlidingHistogram",
    "Standing",
    "StepRecord",
    "StopWhen",
    "StreamsConfig",
    "SubmitOptions",
    "TemplateAbilities",
    "TenantConfig",
    "TextPiece",
    "Timings",
    "Token",
    "TokenLogprob",
    "Usage",
]

_LATE = {
    "EngineConfig": "llamalane.scheduler.config",
    "KVConfig": "llamalane.scheduler.config",
    "LaneConfig": "llamalane.scheduler.config",
    "LookupConfig": "llamalane.scheduler.config",
    "ModelConfig": "llamalane.scheduler.config",
    "QueueConfig": "llamalane.scheduler.config",
    "SchedulerConfig": "llamalane.scheduler.config",
    "StreamsConfig": "llamalane.scheduler.config",
    "TenantConfig": "llamalane.scheduler.config",
    "TEMPLATE_VARIABLES": "llamalane.streams.llama",
    "ChatTemplate": "llamalane.streams.llama",
    "TemplateAbilities": "llamalane.streams.llama",
}
"""The homes of what is loaded when it is first used: it needs pydantic or llama.cpp."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)
