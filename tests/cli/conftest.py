"""Commands set up logging for a whole process; here each leaves it as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in (None, "llamalane", "llamalane.llama")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    logging.captureWarnings(False)
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
