"""Feature: virtual documents. `hiera-candidate:/RUN/CANDIDATE/NAME.cu` is a candidate's text, for diffs."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from contracts.errors import InputError
from hiera_lsp.features import edits
from hiera_lsp.protocol import CANDIDATE_SCHEME
from hiera_lsp.results import Result
from hiera_lsp.session import Session


def candidate_uri(result: Result, candidate: str) -> str:
    """The virtual document of a candidate."""
    return f"{CANDIDATE_SCHEME}:/{quote(result.summary.run)}/{candidate}/{quote(result.summary.name)}.cu"


def candidate_content(session: Session, uri: str) -> str:
    """The text of a virtual document.

    Raises:
        InputError: There is no such run or candidate any more.
    """
    parts = unquote(urlsplit(uri).path).strip("/").split("/")
    result = session.results.by_run(parts[0]) if len(parts) == 3 else None
    if result is None:
        raise InputError(f"no candidate stands behind {uri}", hint="run Optimize kernel again")
    return edits.candidate_text(result, parts[1])
