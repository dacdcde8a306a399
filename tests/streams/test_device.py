from __future__ import annotations

import logging

import pytest

from llamalane.errors import DeviceUnavailableError
from llamalane.streams import Device, DeviceChoice, choose_device
from llamalane.streams.cuda import CudaProbe, CudaState

USABLE = CudaProbe(CudaState.USABLE, devices=1)
UNUSABLE = [state for state in CudaState if not CudaProbe(state).usable]


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("state", list(CudaState))
def test_cpu_is_the_cpu_whatever_there_is(state: CudaState, offload: bool) -> None:
    assert choose_device(DeviceChoice.CPU, offload=offload, probe=CudaProbe(state)) is Device.CPU


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("state", UNUSABLE)
def test_cuda_without_a_usable_gpu_says_why(state: CudaState, offload: bool) -> None:
    with pytest.raises(DeviceUnavailableError) as caught:
        choose_device(DeviceChoice.CUDA, offload=offload, probe=CudaProbe(state, "so said the driver"))
    assert caught.value.device == "cuda"
    assert caught.value.reason == f"{state.value}: so said the driver; {state.remedy}"
    assert state.value in str(caught.value)


def test_cuda_with_a_llama_cpp_that_cannot_use_it_says_so() -> None:
    with pytest.raises(DeviceUnavailableError, match="finds no GPU"):
        choose_device(DeviceChoice.CUDA, offload=False, probe=USABLE)


@pytest.mark.parametrize("state", [CudaState.USABLE, CudaState.NO_SHIM, CudaState.SHIM_TOO_LATE])
def test_cuda_is_the_gpu_also_when_no_streams_can_be_lent(state: CudaState) -> None:
    assert choose_device(DeviceChoice.CUDA, offload=True, probe=CudaProbe(state, devices=1)) is Device.GPU


@pytest.mark.parametrize("state", list(CudaState))
def test_auto_takes_whatever_gpu_llama_cpp_can_use(state: CudaState, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "llamalane.streams.device"):
        assert choose_device(DeviceChoice.AUTO, offload=True, probe=CudaProbe(state)) is Device.GPU
    (message,) = caplog.messages
    assert "GPU, since" in message


@pytest.mark.parametrize("state", list(CudaState))
def test_auto_takes_the_cpu_otherwise_and_logs_why(state: CudaState, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "llamalane.streams.device"):
        assert choose_device(DeviceChoice.AUTO, offload=False, probe=CudaProbe(state)) is Device.CPU
    (message,) = caplog.messages
    assert "CPU, since" in message
    assert state.value in message
