from __future__ import annotations

import dataclasses

from llamalane.streams import CpuStream, Device, OffloadStream, create_stream
from tests.streams.fakes import stream_options


def test_a_stream_is_named_as_what_it_is() -> None:
    options = stream_options("a")
    cpu = create_stream(options)
    gpu = create_stream(dataclasses.replace(options, device=Device.GPU))
    assert isinstance(cpu, CpuStream)
    assert isinstance(gpu, OffloadStream)
    assert (cpu.kind, gpu.kind) == ("cpu", "llama.cpp's own GPU stream")
    assert cpu.options is options
    assert not cpu.priority_enforced
    assert not gpu.priority_enforced
    assert "'a'" in repr(cpu)
    assert "'a'" in repr(gpu)
    with cpu.lend(), gpu.lend():
        pass  # there is nothing to lend
