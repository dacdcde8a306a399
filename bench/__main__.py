"""`python -m llamalane.bench`."""

import sys

from llamalane.bench.commands import app
from llamalane.errors import LlamalaneError

try:
    app(prog_name="python -m llamalane.bench")
except LlamalaneError as error:
    sys.exit(f"error: {error}")
