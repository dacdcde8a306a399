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
from llamalane.scheduler.engine import Engine, ModelInfo
from llamalane.scheduler.events import Event, EventKind, Observer
from llamalane.scheduler.explain import Explanation
from llamalane.scheduler.handle import RequestHandle
from llamalane.scheduler.intake import ChatPrompt, SubmitOptions
from llamalane.scheduler.output import StopWhen
from llamalane.scheduler.priority import PriorityLevels
from llamalane.scheduler.reload import Changes
from llamalane.scheduler.request import RequestState
from llamalane.scheduler.result import Result, Timings, Usage
from llamalane.scheduler.statistics import EngineState, EngineStatistics, LaneStatistics
from llamalane.streams import FinishReason, Grammar, GrammarPart, SamplingParameters
from llamalane.streams.llama import TEMPLATE_VARIABLES, ChatTemplate, TemplateAbilities

__all__ = [
    "LEAST_URGENT",
    "MOST_URGENT",
    "TEMPLATE_VARIABLES",
    "Changes",
    "ChatPrompt",
    "ChatTemplate",
    "Counters",
    "Engine",
    "EngineConfig",
    "EngineState",
    "EngineStatistics",
    "Event",
    "EventKind",
    "Explanation",
    "FinishReason",
    "Grammar",
    "GrammarPart",
    "KVConfig",
    "LaneConfig",
    "LaneStatistics",
    "ModelConfig",
    "ModelInfo",
    "Observer",
    "PriorityLevels",
    "QueueConfig",
    "RequestHandle",
    "RequestState",
    "Result",
    "SamplingParameters",
    "SchedulerConfig",
    "StopWhen",
    "StreamsConfig",
    "SubmitOptions",
    "TemplateAbilities",
    "TenantConfig",
    "Timings",
    "Usage",
]
