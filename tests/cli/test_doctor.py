"""`llamalane doctor`: what it tells, and when it ends with an error."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import doctor_scenarios as scenarios
from tests.cli.process import run
from tests.streams.cuda.machine import build, run_scenario

no_gpu = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("the fake driver is built on Linux, with gcc")
    return build(tmp_path_factory.mktemp("fake-cuda"))


def test_a_machine_without_a_gpu_is_well(tiny_model: Path) -> None:
    done = run("doctor", tiny_model, **no_gpu)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"version     python {platform.python_version()}\n" in done.stdout
    assert "version     llama-cpp-python 0." in done.stdout
    assert f"model       {tiny_model}: 0.0 GiB\n" in done.stdout
    assert "nothing is broken that is needed" in done.stdout
    assert "to use a GPU: " in done.stdout
    assert "CPU : " in done.stdout, "llama.cpp tells how it was built"


def test_what_a_wanted_gpu_lacks_is_an_error(tiny_model: Path) -> None:
    done = run("doctor", tiny_model, "--device", "cuda", **no_gpu)
    assert done.returncode == 1
    assert "problem     streams.device is cuda: " in done.stdout


def test_a_missing_model_and_one_that_is_none_are_errors(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a model")
    for path in (tmp_path / "missing.gguf", other):
        done = run("doctor", path, **no_gpu)
        assert done.returncode == 1
        assert f"problem     {path} is not a readable GGUF file" in done.stdout


def test_a_configuration_is_looked_through(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"models: [{{path: {tiny_model}}}]\nstreams: {{device: cpu, lanes: [{{priority: 1}}]}}\n")
    assert run("doctor", "--config", file, **no_gpu).returncode == 0
    file.write_text("models: []\n")
    assert run("doctor", "--config", file, **no_gpu).returncode == 2


def test_json_says_the_same(tiny_model: Path) -> None:
    done = run("doctor", tiny_model, "--json", **no_gpu)
    report = json.loads(done.stdout)
    assert report["models"] == {str(tiny_model): tiny_model.stat().st_size}
    assert report["problems"] == []
    assert report["cuda"]["gpus"] == []
    assert report["cuda"]["remedy"]
    assert report["versions"]["llamalane"]
    assert report["cores"] >= 1


def test_a_llama_cpp_that_cannot_be_loaded_is_a_problem(tmp_path: Path) -> None:
    done = run("doctor", "--json", LLAMA_CPP_LIB_PATH=str(tmp_path), **no_gpu)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["llama_cpp"] is None
    (problem,) = report["problems"]
    assert problem.startswith("llama.cpp cannot be loaded: ")


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.all_is_well,
        scenarios.a_gpu_that_is_not_there_is_a_problem,
        scenarios.a_gpu_that_does_not_answer_is_a_problem,
        scenarios.without_a_shim_only_wishes_are_a_problem,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_fake_driver(libraries: Path, tiny_model: Path, scenario: Callable[[], None]) -> None:
    run_scenario(libraries, scenario, TINY_MODEL=tiny_model, FAKE_DEVICES=2)
