"""Divides a GPU's multiprocessors among streams, by green contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llamalane.errors import StreamLimitError
from llamalane.streams.cuda.driver import translated


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a GPU: a green context of cuda.core, and how many multiprocessors the driver granted to it.

    It must never be made current on a thread that runs llama.cpp, which uses the device's primary context; a stream
    of the partition keeps to its multiprocessors all the same.
    """

    context: Any
    granted: int

    def destroy(self) -> None:
        """Give the multiprocessors back. Its streams must be destroyed before."""
        self.context.close()


def split(device: Any, wanted: Sequence[tuple[str, int]]) -> list[Partition]:
    """Divide a device, once for all who want a part: names, for messages, and numbers of multiprocessors.

    A part is rounded up to what the GPU can be divided into, such as multiples of 8, and what was granted is read back.
    Raises `StreamLimitError` when a part, or all together, are more than the device has, and `CudaError` when its
    driver cannot do it: it takes CUDA 12.4, and 13.1 for parts of different sizes.
    """
    if not wanted:
        return []
    from cuda.core import ContextOptions, SMResourceOptions  # noqa: PLC0415

    with translated("to tell of its multiprocessors"):
        whole = device.resources.sm
        most, smallest, unit = int(whole.sm_count), int(whole.min_partition_size), int(whole.coscheduled_alignment)
    sizes: list[int] = []
    for name, size in wanted:
        left = most - sum(sizes)
        sizes.append(max(smallest, -(-size // unit) * unit))
        if size < 1 or sizes[-1] > left:
            note = "what the device has" if left == most else f"what the others leave of the device's {most}"
            raise StreamLimitError(name, "multiprocessors", size, min(smallest, left), left, note=note)
    with translated(f"to divide {most} multiprocessors into {', '.join(map(str, sizes))}"):
        groups, _rest = whole.split(SMResourceOptions(count=sizes))
    partitions: list[Partition] = []
    try:
        for group in groups:
            with translated("to create a green context"):
                context = device.create_context(ContextOptions(resources=[group]))
                partitions.append(Partition(context, 0))
                partitions[-1] = Partition(context, int(context.resources.sm.sm_count))
    except BaseException:
        for partition in partitions:
            partition.destroy()
        raise
    return partitions
