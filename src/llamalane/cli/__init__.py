"""The command line: `llamalane serve`, `generate`, `batch`, `simulate`, `bench` and `config`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from llamalane.cli.log_format import writes_json
from llamalane.errors import ConfigError, LlamalaneError

__all__ = ["EXIT_FAILURE", "EXIT_ITEMS_FAILED", "EXIT_USAGE", "main"]

logger = logging.getLogger(__name__)

EXIT_FAILURE = 1
"""The work could not be done."""
EXIT_USAGE = 2
"""The command line or the configuration is wrong; click ends with the same code."""
EXIT_ITEMS_FAILED = 3
"""A batch was finished, and some of its lines failed."""

_EXTRA = frozenset({"typer", "rich", "uvicorn", "fastapi", "starlette", "prometheus_client", "opentelemetry"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `arguments` are those of the process unless given.

    An error that llamalane knows is told in one line. Its traceback is shown at log level debug. Where the log is in
    JSON, every error is a record of it.
    """
    try:
        from llamalane.cli.app import app  # noqa: PLC0415  (typer may not be installed)

        app(arguments, prog_name="llamalane")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        return _tell(error, f"the command line needs {error.name}: pip install 'llamalane[server]'", EXIT_FAILURE)
    except LlamalaneError as error:
        return _tell(error, str(error), EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE)
    except Exception:
        if not writes_json():
            raise
        logger.critical("an unexpected error ended the command", exc_info=True)
        return EXIT_FAILURE
    return 0


def _tell(error: Exception, message: str, code: int) -> int:
    logger.debug("this ended the command", exc_info=error)
    if writes_json():
        logger.error("%s", message)
    else:
        print(f"error: {message}", file=sys.stderr)
    return code
