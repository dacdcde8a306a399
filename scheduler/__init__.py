from llamalane.scheduler.config import EngineConfig
from llamalane.scheduler.engine import Engine, SubmitOptions, ModelInfo
from llamalane.scheduler.handle import RequestHandle
from llamalane.scheduler.priority import PriorityLevels
from llamalane.scheduler.result import Result, Timings, Usage
from llamalane.scheduler.statistics import EngineState, EngineStatistics, LaneStatistics, CounterStatistics
from llamalane.streams import SamplingParameters, FinishReason
