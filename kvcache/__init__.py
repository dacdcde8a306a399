"""The books of KV memory: regions and the places in them. Pure: knows no clock, no thread, no llama.cpp."""

from llamalane.kvcache.budget import CELLS_MULTIPLE, Layout, RegionPlan, divide
from llamalane.kvcache.region import Region, RegionStatistics, TakenPlace, common_prefix

__all__ = [
    "CELLS_MULTIPLE",
    "Layout",
    "Region",
    "RegionPlan",
    "RegionStatistics",
    "TakenPlace",
    "common_prefix",
    "divide",
]
