"""`python -m llamalane` is the command line."""

import sys

from llamalane.cli import main

sys.exit(main())
