"""`python -m engine.cli`: the command from a checkout."""

import sys

from engine.cli import main

sys.exit(main())
