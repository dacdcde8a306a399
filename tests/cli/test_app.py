"""What the command line says before any work begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llamalane import __version__
from llamalane.cli import main
from llamalane.cli.app import app
from tests.cli.process import environment, run


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, arguments, prog_name="llamalane")
    return result.exit_code, result.output


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=environment(), check=False
    )


def test_version() -> None:
    assert invoke("--version") == (0, f"llamalane {__version__}\n")


def test_help_names_every_command() -> None:
    code, output = invoke("--help")
    assert code == 0
    for name in ("serve", "generate", "batch", "simulate", "bench", "config"):
        assert f"│ {name} " in output


def test_help_needs_nothing_that_is_slow_to_import() -> None:
    heavy = {"anyio", "fastapi", "llama_cpp", "numpy", "pydantic", "uvicorn", "yaml", "llamalane.scheduler"}
    result = run_python(
        "import sys, llamalane.cli.app as cli; cli.app(['--help'], standalone_mode=False); "
        f"print({heavy!r} & {{*sys.modules}})"
    )
    assert result.stdout.endswith("set()\n"), result


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["serve", "--port", "many"],
        ["serve", "--device", "abacus"],
        ["serve", "a.gguf", "b.gguf"],
        ["serve", "--log-level", "loud"],
        ["generate"],
        ["generate", "model.gguf", "these", "words"],
        ["generate", "prompt", "--temperature", "warm"],
        ["batch", "in.jsonl"],
    ],
)
def test_a_wrong_command_line_has_exit_code_2(arguments: list[str]) -> None:
    code, output = invoke(*arguments)
    assert code == 2
    assert "Error" in output


@pytest.mark.parametrize("arguments", [["serve"], ["generate", "hello"], ["batch", "in.jsonl", "out.jsonl"]])
def test_no_model_is_a_clear_error(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr == "error: name a model: MODEL.gguf or --config FILE\n"


def test_a_missing_extra_is_named() -> None:
    result = run_python("import sys; sys.modules['typer'] = None; from llamalane.cli import main; sys.exit(main([]))")
    assert result.returncode == 1
    assert result.stderr == "error: the command line needs typer: pip install 'llamalane[server]'\n"


def test_a_missing_module_of_another_kind_is_no_missing_extra() -> None:
    result = run_python("import sys; sys.modules['llamalane.cli.app'] = None; from llamalane.cli import main; main([])")
    assert result.stderr.endswith("ModuleNotFoundError: import of llamalane.cli.app halted; None in sys.modules\n")


def test_a_traceback_is_shown_only_at_log_level_debug(tmp_path: Path) -> None:
    plain = run("generate", tmp_path / "missing.gguf", "hello")
    debug = run("generate", tmp_path / "missing.gguf", "hello", "--log-level", "debug")
    line = f"error: cannot read the model {tmp_path / 'missing.gguf'}: No such file or directory\n"
    assert (plain.returncode, plain.stdout, plain.stderr) == (1, "", line)
    assert debug.returncode == 1
    assert debug.stderr.endswith(line)
    assert "ModelLoadError" in debug.stderr


@pytest.mark.parametrize("name", ["bench", "config"])
def test_other_commands_get_all_that_follows_their_name(name: str) -> None:
    code, output = invoke(name, "--help")
    assert code == 0
    assert f"Usage: llamalane {name} " in output
    assert "Commands" in output


def test_an_error_of_a_command_below_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "no-such-file.yaml"]) == 2
    assert capsys.readouterr().err == ("error: no-such-file.yaml: the file cannot be read: No such file or directory\n")
