"""The sdist and the wheel: everything that belongs in them is there, and nothing else."""

from __future__ import annotations

import email
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("scheduler", "streams", "streams/cuda", "streams/llama", "kvcache", "api", "bench", "cli")
SHIM = "llamalane/streams/cuda/_lend.abi3.so"


@dataclass(frozen=True)
class Distributions:
    """What was built: the project's files, the names in each archive, and the archives themselves.

    `project` and `sdist` name files from the project's root, `wheel` from site-packages.
    """

    project: frozenset[str]
    sdist: frozenset[str]
    wheel: frozenset[str]
    wheel_path: Path

    @property
    def information(self) -> str:
        """The wheel's own folder of metadata."""
        name, version, _ = self.wheel_path.name.split("-", 2)
        return f"{name}-{version}.dist-info"

    def read(self, name: str) -> str:
        """Return the text of a file in the wheel."""
        with zipfile.ZipFile(self.wheel_path) as wheel:
            return wheel.read(name).decode()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    if not (ROOT / ".git").exists():
        pytest.skip("only a git checkout knows which files belong to the project")
    # A copy, because a build leaves folders behind from which a later one would take deleted modules.
    copy = tmp_path_factory.mktemp("project")
    copy_project(copy)
    target = tmp_path_factory.mktemp("dist")
    # Without isolation nothing is fetched; without --sdist and --wheel the wheel is built from the sdist.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = target.glob("*.tar.gz")
    (wheel,) = target.glob("*.whl")
    return Distributions(
        project=frozenset(project_files()),
        sdist=names_in_sdist(sdist),
        wheel=names_in_wheel(wheel),
        wheel_path=wheel,
    )


def project_files() -> list[str]:
    """Name every file that git tracks, or would if it were added."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    names = set(done.stdout.split("\0")) - {""}
    return sorted(name for name in names if (ROOT / name).exists())


def copy_project(target: Path) -> None:
    for name in project_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def names_in_sdist(path: Path) -> frozenset[str]:
    with tarfile.open(path) as sdist:
        files = (member.name for member in sdist if member.isfile())
        return frozenset(name.partition("/")[2] for name in files)


def names_in_wheel(path: Path) -> frozenset[str]:
    with zipfile.ZipFile(path) as wheel:
        return frozenset(wheel.namelist())


def installed_name(name: str) -> str | None:
    """Say where a file of the project lies in site-packages, None for what is not installed."""
    folder, _, rest = name.partition("/")
    if folder == "src" and not (ROOT / name).is_symlink():
        return rest
    return f"llamalane/{name}" if folder in ROOMS else None


@pytest.mark.parametrize("room", ROOMS)
def test_wheel_holds_the_room(built: Distributions, room: str) -> None:
    assert f"llamalane/{room}/__init__.py" in built.wheel


def test_wheel_holds_exactly_the_files_of_the_package(built: Distributions) -> None:
    files = {name for name in built.wheel if name.startswith("llamalane/")} - {SHIM}
    assert files == {place for name in built.project if (place := installed_name(name))}


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_wheel_holds_the_shim_that_lends_streams(built: Distributions) -> None:
    assert SHIM in built.wheel
    assert built.wheel_path.name.endswith("linux_x86_64.whl") or platform.machine() != "x86_64"
    assert "-cp311-abi3-" in built.wheel_path.name, "it holds nothing of one Python"


def test_wheel_has_one_package_at_its_top(built: Distributions) -> None:
    assert {name.partition("/")[0] for name in built.wheel} == {"llamalane", built.information}


def test_wheel_says_that_it_is_typed_and_under_which_license(built: Distributions) -> None:
    assert "llamalane/py.typed" in built.wheel
    license = built.read(f"{built.information}/licenses/LICENSE")
    assert license == (ROOT / "LICENSE").read_text(encoding="utf-8")
    metadata = email.message_from_string(built.read(f"{built.information}/METADATA"))
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "server" in metadata.get_all("Provides-Extra", [])


def test_the_dashboard_is_found_in_an_installed_wheel(built: Distributions, tmp_path: Path) -> None:
    with zipfile.ZipFile(built.wheel_path) as wheel:
        wheel.extractall(tmp_path)
    program = "from llamalane.api.dashboard import page; print(page.__file__, *page.PAGE_FILES, sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    where, *paths = done.stdout.split()
    assert Path(where).is_relative_to(tmp_path)
    names = [file.name for file in (ROOT / "api" / "dashboard" / "static").iterdir() if file.name != "index.html"]
    assert sorted(paths) == sorted(["/dashboard", *(f"/dashboard/{name}" for name in names)])


def test_wheel_installs_the_command(built: Distributions) -> None:
    scripts = built.read(f"{built.information}/entry_points.txt")
    assert scripts.split("\n")[:2] == ["[console_scripts]", "llamalane = llamalane.cli:main"]


def test_sdist_holds_every_room_the_tests_and_the_examples(built: Distributions) -> None:
    wanted = {f"src/{place}" for name in built.project if (place := installed_name(name))}
    wanted |= {name for name in built.project if name.startswith(("tests/", "docs/", "examples/"))}
    wanted |= {"LICENSE", "MANIFEST.in", "Makefile", "README.md", "pyproject.toml"}
    assert wanted - built.sdist == set()


def test_archives_hold_no_compiled_files(built: Distributions) -> None:
    compiled = [name for name in built.sdist | built.wheel if name.endswith(".pyc") or "__pycache__" in name]
    assert compiled == []
