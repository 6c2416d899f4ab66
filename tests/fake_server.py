"""The real server with tests/fake_job.py in the place of its jobs' program."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hiera_lsp import jobs  # noqa: E402 - the path comes first.
from hiera_lsp.start import server  # noqa: E402

jobs.PROGRAM = (f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); "
                f"runpy.run_path({str(ROOT / 'tests' / 'fake_job.py')!r}, run_name='__main__')")
server()
