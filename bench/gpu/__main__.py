"""`python -m llamalane.bench.gpu`."""

import sys

from llamalane.bench.gpu.commands import app
from llamalane.errors import LlamalaneError

try:
    app(prog_name="python -m llamalane.bench.gpu")
except LlamalaneError as error:
    sys.exit(f"error: {error}")
