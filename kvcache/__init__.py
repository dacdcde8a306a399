"""The books of KV memory: regions and the places in them. Pure: knows no clock, no thread, no llama.cpp."""

from llamalane.kvcache.budget import CELLS_MULTIPLE, Layout, RegionPlan, divide
from llamalane.kvcache.changes import CellChange, Evicted, Merged, Moved, RegionStatistics, Source, TakenPlace
from llamalane.kvcache.disk_store import DiskStatistics, DiskStore, StoredFile
from llamalane.kvcache.holdings import CellUse, Holding
from llamalane.kvcache.host_store import EntryId, HostStatistics, HostStore, Stored
from llamalane.kvcache.prefix_tree import Match, PrefixTree
from llamalane.kvcache.region import Region
from llamalane.kvcache.runs import common_prefix
from llamalane.kvcache.shared_region import SharedRegion

__all__ = [
    "CELLS_MULTIPLE",
    "CellChange",
    "CellUse",
    "DiskStatistics",
    "DiskStore",
    "EntryId",
    "Evicted",
    "Holding",
    "HostStatistics",
    "HostStore",
    "Layout",
    "Match",
    "Merged",
    "Moved",
    "PrefixTree",
    "Region",
    "RegionPlan",
    "RegionStatistics",
    "SharedRegion",
    "Source",
    "Stored",
    "StoredFile",
    "TakenPlace",
    "common_prefix",
    "divide",
]
