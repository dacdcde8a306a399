"""The scheduler: whose tokens come next, and the engine that carries it out."""

from llamalane.ids import LEAST_URGENT, MOST_URGENT
from llamalane.scheduler.config import (
    EngineConfig,
    KVConfig,
    LaneConfig,
    ModelConfig,
    QueueConfig,
    SchedulerConfig,
    StreamsConfig,
    TenantConfig,
)
from llamalane.scheduler.counters import Counters
from llamalane.scheduler.embedding import EmbedOptions, Relevance
from llamalane.scheduler.engine import Engine
from llamalane.scheduler.events import Event, EventKind, Observer
from llamalane.scheduler.explain import Explanation
from llamalane.scheduler.handle import RequestHandle
from llamalane.scheduler.intake import SubmitOptions
from llamalane.scheduler.priority import PriorityLevels
from llamalane.scheduler.reload import Changes
from llamalane.scheduler.request import RequestState
from llamalane.scheduler.result import EmbeddingResult, Result, Timings, Usage
from llamalane.scheduler.served_models import ModelInfo, ServedModel
from llamalane.scheduler.statistics import EngineState, EngineStatistics, LaneStatistics
from llamalane.streams import FinishReason, Grammar, SamplingParameters

__all__ = [
    "LEAST_URGENT",
    "MOST_URGENT",
    "Changes",
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
    "Grammar",
    "KVConfig",
    "LaneConfig",
    "LaneStatistics",
    "ModelConfig",
    "ModelInfo",
    "Observer",
    "PriorityLevels",
    "QueueConfig",
    "Relevance",
    "RequestHandle",
    "RequestState",
    "Result",
    "SamplingParameters",
    "SchedulerConfig",
    "ServedModel",
    "StreamsConfig",
    "SubmitOptions",
    "TenantConfig",
    "Timings",
    "Usage",
]
