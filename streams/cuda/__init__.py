"""CUDA: whether it can be used, and streams that llama.cpp computes on. Imports cuda-python only when asked."""

from llamalane.streams.cuda.driver import GPU, PriorityRange, describe, free_memory
from llamalane.streams.cuda.pool import CudaPoolStatistics, CudaStreamPool, CudaStreamStatistics, StreamClass
from llamalane.streams.cuda.probe import MINIMUM_DRIVER, CudaProbe, CudaState, llama_has_cuda, probe
from llamalane.streams.cuda.shim import Shim, ShimState, find_shim, load_shim
from llamalane.streams.cuda.stream import HeldStream

__all__ = [
    "GPU",
    "MINIMUM_DRIVER",
    "CudaPoolStatistics",
    "CudaProbe",
    "CudaState",
    "CudaStreamPool",
    "CudaStreamStatistics",
    "HeldStream",
    "PriorityRange",
    "Shim",
    "ShimState",
    "StreamClass",
    "describe",
    "find_shim",
    "free_memory",
    "llama_has_cuda",
    "load_shim",
    "probe",
]
