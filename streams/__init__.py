"""Streams and lanes: what computes, and who may use it."""

from llamalane.streams.device import Device, DeviceChoice, choose_device
from llamalane.streams.pool import KVRegion, Lease, PoolLane, StreamPool
from llamalane.streams.sampling import SamplingParameters
from llamalane.streams.steps import (
    Edit,
    FinishReason,
    Join,
    LaneBackend,
    LaneFailed,
    LaneMessage,
    LaneReady,
    Leave,
    RowOutput,
    StepPlan,
    StepReport,
    StepTimes,
)
from llamalane.streams.stream import CpuStream, OffloadStream, Stream, StreamOptions, create_stream

__all__ = [
    "CpuStream",
    "Device",
    "DeviceChoice",
    "Edit",
    "FinishReason",
    "Join",
    "KVRegion",
    "LaneBackend",
    "LaneFailed",
    "LaneMessage",
    "LaneReady",
    "Lease",
    "Leave",
    "OffloadStream",
    "PoolLane",
    "RowOutput",
    "SamplingParameters",
    "StepPlan",
    "StepReport",
    "StepTimes",
    "Stream",
    "StreamOptions",
    "StreamPool",
    "choose_device",
    "create_stream",
]
