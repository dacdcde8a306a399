"""The scripts for a machine with a GPU: they parse, say what they would do, and refuse what is wrong."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "bench" / "gpu"
SCRIPTS = ("run.sh", "archive.sh")
PATHS = ("--llama", "sources", "--wheels", "wheels")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(FOLDER / script), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_parses(script: str) -> None:
    done = subprocess.run(["bash", "-n", str(FOLDER / script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    done = subprocess.run(["shellcheck", str(FOLDER / script)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_a_dry_run_prints_every_part() -> None:
    done = run("run.sh", *PATHS, "--arch", "90", "--sizes", "1b", "--types", "q4_k", "--dry-run")
    assert done.returncode == 0, done.stderr
    names = [line.partition("]")[0].lstrip("[") for line in done.stdout.splitlines()]
    assert names == [
        *("venv", "wheels", "shim", "configure", "build", "model-1b-q4_k", "tests-1b-q4_k", "costs-1b-q4_k"),
        *("priorities-1b-q4_k", "priorities-no-graphs-1b-q4_k", "throughput-1b-q4_k", "doctor", "table"),
    ]
    assert "-DCMAKE_CUDA_ARCHITECTURES=90" in done.stdout
    assert not Path("gpu-work").exists()


def test_one_part_can_be_chosen() -> None:
    done = run("run.sh", *PATHS, "--part", "models", "--dry-run")
    names = [line.partition("]")[0].lstrip("[") for line in done.stdout.splitlines()]
    assert names == ["model-1b-q4_k", "model-1b-f16", "model-7b-q4_k", "model-7b-f16"]


def test_a_dry_run_of_the_archive_writes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "archive.tar.xz"
    done = run("archive.sh", *PATHS, "--output", str(target), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "copy sources to llama-cpp-python/" in done.stdout
    assert not target.exists()


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("run.sh", [], "name --llama and --wheels"),
        ("run.sh", ["--llama"], "--llama needs a value"),
        ("run.sh", [*PATHS, "--part", "nothing"], "there is no part nothing"),
        ("run.sh", [*PATHS, "--what"], "unknown option --what"),
        ("run.sh", PATHS, "sources holds no vendor/llama.cpp"),
        ("archive.sh", ["--wheels", "w"], "name --llama and --wheels"),
        ("archive.sh", ["--limit"], "--limit needs a value"),
    ],
)
def test_what_is_wrong_is_told(script: str, arguments: list[str], message: str) -> None:
    done = run(script, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_step_that_is_done_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "sources" / "vendor" / "llama.cpp").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "work" / "done").mkdir(parents=True)
    paths = [
        "--llama",
        str(tmp_path / "sources"),
        "--wheels",
        str(tmp_path / "wheels"),
        "--work",
        str(tmp_path / "work"),
    ]
    for size in ("1b", "7b"):
        for kind in ("q4_k", "f16"):
            (tmp_path / "work" / "done" / f"model-{size}-{kind}").touch()
    done = run("run.sh", *paths, "--arch", "90", "--part", "models")
    assert (done.returncode, done.stdout) == (0, "")
    (tmp_path / "work" / "done" / "model-7b-f16").unlink()
    again = run("run.sh", *paths, "--arch", "90", "--part", "models")
    assert again.returncode != 0, "there is no Python in this work folder"
    assert "== model-7b-f16" in again.stdout
    assert "model-7b-f16 failed" in again.stderr


def test_the_archive_holds_what_a_build_takes_and_no_more(tmp_path: Path) -> None:
    if not (FOLDER.parents[1] / ".git").exists() or shutil.which("xz") is None:
        pytest.skip("needs a git checkout and xz")
    sources = tmp_path / "llama_cpp_python-1"
    for name in ("llama_cpp/llama_cpp.py", "vendor/llama.cpp/ggml/src/ggml-cuda/a.cu", "vendor/llama.cpp/docs/a.md"):
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).touch()
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "a-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a.py", "a = 1\n")
    target = tmp_path / "archive.tar.xz"
    paths = ("--llama", str(sources), "--wheels", str(tmp_path / "wheels"), "--output", str(target))
    done = run("archive.sh", *paths)
    assert done.returncode == 0, done.stderr
    with tarfile.open(target) as archive:
        names = set(archive.getnames())
    assert "llamalane/bench/gpu/run.sh" in names
    assert "llamalane/src/llamalane/streams" in names
    assert "llama-cpp-python/vendor/llama.cpp/ggml/src/ggml-cuda/a.cu" in names
    assert "llama-cpp-python/vendor/llama.cpp/docs/a.md" not in names
    assert "wheels/a-1-py3-none-any.whl" in names
    too_large = run("archive.sh", *paths, "--limit", "-1")
    assert too_large.returncode == 1
    assert "more than -1" in too_large.stderr
