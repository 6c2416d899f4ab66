"""Feature: virtual documents. `hiera-candidate:/RUN/CANDIDATE/NAME.cu` is a candidate's text, for diffs.

What else there is of a candidate stands beside it: see `features/runs.py`.
"""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from contracts.errors import InputError
from hiera_lsp.protocol import CANDIDATE_SCHEME
from hiera_lsp.results import Result


def candidate_uri(result: Result, candidate: str) -> str:
    """The virtual document of a candidate."""
    return f"{CANDIDATE_SCHEME}:/{quote(result.summary.run)}/{candidate}/{quote(result.summary.name)}.cu"


def candidate_content(uri: str) -> str:
    """The text of a virtual document, from the store: it may be asked for after a reload.

    Raises:
        InputError: There is no such run, candidate or evidence any more.
    """
    from contracts.cuda_adaptor import without_adaptor
    from engine.store import Store
    from hiera_lsp.features.runs import evidence_text

    parts = [unquote(part) for part in urlsplit(uri).path.strip("/").split("/")]
    if len(parts) == 3 and all(part.replace("-", "").replace("_", "").isalnum() for part in parts[:2]):
        if not parts[2].endswith(".cu"):
            if (text := evidence_text(*parts)) is not None:
                return text
            raise InputError(f"no evidence stands behind {uri}", hint="refresh the runs")
        path = Store().root / "runs" / parts[0] / "sources" / f"{parts[1]}.cu"
        try:
            return without_adaptor(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            pass
    raise InputError(f"no candidate stands behind {uri}", hint="run Optimize kernel again")
