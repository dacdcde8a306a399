"""`llamalane doctor`: what this machine and this installation are, and what keeps a configuration from being served."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import typer

from llamalane.cli.processor import build_warnings, cpu_features, processor_name, spin_warnings
from llamalane.errors import LlamalaneError
from llamalane.scheduler import EngineConfig
from llamalane.streams import DeviceChoice
from llamalane.streams.cores import available_cores
from llamalane.streams.cuda import GPU, CudaProbe, describe, find_shim, probe

_PACKAGES = (
    "llamalane",
    "llama-cpp-python",
    "cuda-python",
    "cuda-bindings",
    "cuda-core",
    "numpy",
    "anyio",
    "pydantic",
    "fastapi",
    "uvicorn",
)
_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """What a look at CUDA found.

    Attributes:
        state: a name of `CudaState`.
        reason: the state in words, with the driver's own.
        remedy: what to do; empty when there is nothing to do.
        shim: where the library is that lends streams to llama.cpp; None where it was not built.
        gpus: those that the driver shows and that answer.
    """

    state: str
    reason: str
    remedy: str
    shim: str | None
    gpus: tuple[GPU, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found; `problems` are those that keep the configuration from being served as it is.

    Attributes:
        cores: those that llama.cpp can have threads on: without second hardware threads, and no more than the control
            groups grant.
        llama_cpp: how llama.cpp was built, in its own words; None where it cannot be loaded.
        memory, free_memory: of the machine, in bytes; None where the system does not tell.
        models: those that were named, with their sizes in bytes, None for what is no readable GGUF file.
        warnings: what makes llama.cpp slower than it could be.
    """

    system: str
    processor: str
    cores: int
    cpu_features: tuple[str, ...]
    memory: int | None
    free_memory: int | None
    versions: dict[str, str]
    llama_cpp: str | None
    cuda: Cuda
    models: dict[str, int | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def doctor(config: EngineConfig | None, *, as_json: bool) -> int:
    """Print the report; returns 1 when something is broken that `config` needs, else 0."""
    report = examine(config)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        for line in lines(report):
            typer.echo(line)
    return 1 if report.problems else 0


def examine(config: EngineConfig | None) -> Report:
    """Look at the machine and the installation. Never raises for what is broken there."""
    found = probe()  # before llama.cpp is loaded: its calls have to find the shim
    gpus, failed = _gpus(found)
    system_info, offload, unloadable = _llama_cpp()
    models = {str(model.path): _size(model.path) for model in config.models} if config else {}
    problems = [f"{path} is not a readable GGUF file" for path, size in models.items() if size is None]
    if unloadable:
        problems.append(f"llama.cpp cannot be loaded: {unloadable}")
    if config is not None:
        problems += _gpu_problems(config, found, failed, offload=offload)
    features, told = cpu_features(), system_info or ""
    warnings = [*spin_warnings(os.environ, told), *(build_warnings(features, told) if told else ())]
    return Report(
        system=platform.platform(),
        processor=processor_name(),
        cores=len(available_cores()),
        cpu_features=features,
        memory=_memory("MemTotal"),
        free_memory=_memory("MemAvailable"),
        versions={"python": platform.python_version()} | dict(_versions()),
        llama_cpp=system_info,
        cuda=Cuda(
            state=found.state.name,
            reason=found.reason,
            remedy=found.state.remedy,
            shim=str(shim) if (shim := find_shim()) else None,
            gpus=tuple(gpus),
        ),
        models=models,
        problems=tuple(problems),
        warnings=tuple(warnings),
    )


def lines(report: Report) -> Iterator[str]:
    """Write the report as text."""
    yield f"system      {report.system}"
    yield f"processor   {report.processor}, {report.cores} cores: {' '.join(report.cpu_features)}"
    if report.memory is not None and report.free_memory is not None:
        yield f"memory      {_gib(report.memory)}, {_gib(report.free_memory)} available"
    for name, version in report.versions.items():
        yield f"version     {name} {version}"
    yield f"llama.cpp   {report.llama_cpp or 'cannot be loaded'}"
    yield f"CUDA        {report.cuda.reason}"
    if report.cuda.remedy:
        yield f"            to use a GPU: {report.cuda.remedy}"
    yield f"shim        {report.cuda.shim or 'not built'}"
    for gpu in report.cuda.gpus:
        yield (
            f"GPU {gpu.index}       {gpu.name}, compute capability {'.'.join(map(str, gpu.compute_capability))}, "
            f"{gpu.multiprocessors} multiprocessors, {_gib(gpu.memory)}, {_gib(gpu.free)} free, "
            f"stream priorities from {gpu.priorities.least} to {gpu.priorities.greatest}"
        )
    for path, size in report.models.items():
        yield f"model       {path}: {_gib(size) if size is not None else 'no readable GGUF file'}"
    for warning in report.warnings:
        yield f"warning     {warning}"
    for problem in report.problems:
        yield f"problem     {problem}"
    if not report.problems:
        yield "            nothing is broken that is needed"


def _gpus(found: CudaProbe) -> tuple[list[GPU], dict[int, str]]:
    """Return the GPUs that answer, and why others do not."""
    gpus: list[GPU] = []
    failed: dict[int, str] = {}
    for index in range(found.devices):
        try:
            gpus.append(describe(index))
        except LlamalaneError as error:
            failed[index] = str(error)
    return gpus, failed


def _gpu_problems(config: EngineConfig, found: CudaProbe, failed: dict[int, str], *, offload: bool) -> Iterator[str]:
    """Say what the configuration wants of GPUs and cannot have."""
    choice = config.streams.device
    if choice is DeviceChoice.CUDA and not found.usable:
        yield f"streams.device is cuda: {found.reason}"
    elif choice is DeviceChoice.CUDA and not offload:
        yield "streams.device is cuda: llama.cpp finds no GPU, though the driver shows one"
    if choice is DeviceChoice.CPU or not (offload or choice is DeviceChoice.CUDA):
        return
    for lane in config.streams.lanes:
        if found.usable and not found.lends and (lane.priority is not None or lane.multiprocessors is not None):
            yield f"lane {lane.name} wants a stream of its own: {found.reason}"
        index = lane.device or 0
        if index in failed:
            yield f"lane {lane.name} wants GPU {index}: {failed[index]}"
        elif found.usable and index >= found.devices:
            yield f"lane {lane.name} wants GPU {index}, and GPUs go from 0 to {found.devices - 1}"


def _llama_cpp() -> tuple[str | None, bool, str]:
    """Return how llama.cpp was built, whether it finds a GPU, and why it cannot be loaded."""
    try:
        from llamalane.streams.llama import library  # noqa: PLC0415  (what it needs may be broken)

        loaded = library()
        return loaded.api.llama_print_system_info().decode().strip(" |"), loaded.supports_gpu_offload, ""
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return None, False, f"{type(error).__name__}: {error}"


def _size(path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            return path.stat().st_size if file.read(len(_MAGIC)) == _MAGIC else None
    except OSError:
        return None


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def _memory(key: str) -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in text.splitlines())
    return int(sizes[key].split()[0]) * 1024 if key in sizes else None


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
