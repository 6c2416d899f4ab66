"""What a command's argument means: its document, its site, its result, or an error with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygls import uris

from contracts.errors import ConfigError, InputError
from hiera_lsp.documents import Document, document_of, plain
from hiera_lsp.jobs import Site
from hiera_lsp.results import Result
from hiera_lsp.session import Session
from hiera_lsp.sites import EditorSite

if TYPE_CHECKING:
    from hiera_lsp.server import HieraServer


def document_in(server: HieraServer, argument: Any) -> Document:
    """The document that the argument names."""
    if not isinstance(argument, dict) or not isinstance(argument.get("uri"), str):
        raise InputError("the command's argument has no uri", hint="pass {uri, symbol}")
    return document_of(server, argument["uri"])


def site_in(server: HieraServer, session: Session, argument: Any) -> tuple[Document, EditorSite]:
    """The document and the site that the argument names; without a symbol, the document's only one."""
    document = document_in(server, argument)
    symbol = argument.get("symbol")
    sites = session.finder.sites(document)
    site = next((s for s in sites if s.symbol == symbol), None)
    if site is None and symbol is None and len(sites) == 1:
        site = sites[0]
    if site is None:
        names = ", ".join(s.symbol for s in sites) or "nothing that can be optimised"
        raise InputError(f"{symbol!r} is not in this document", hint=f"it has {names}")
    return document, site


def result_in(session: Session, argument: Any) -> Result:
    """The result of the site that the argument names; with `run`, only while it is that run's.

    A client that shows a candidate names what it shows, so that nothing else is taken for it.
    """
    if not isinstance(argument, dict):
        raise InputError("the command's argument has no uri", hint="pass {uri, symbol}")
    symbol = str(argument.get("symbol"))
    result = session.results.at(Site(str(argument.get("uri")), symbol))
    if result is None:
        raise InputError(f"{symbol} has no result", hint="run Optimize kernel first")
    if argument.get("run") not in (None, result.summary.run):
        raise InputError(f"{symbol} has another result by now", hint="open the review again")
    return result


def check_ready(session: Session, document: Document, site: EditorSite) -> None:
    """See that a job for the site may start now.

    Raises:
        HieraError: The workspace is not trusted, a job runs, or the file on disk is not the text in the editor.
    """
    if not session.trusted:
        raise ConfigError("the workspace is not trusted", hint="trust it: optimising imports and runs its code")
    if session.jobs.at(Site(document.uri, site.symbol)) is not None:
        raise InputError(f"a job for {site.symbol} is running", hint="wait for it or cancel it")
    path = Path(uris.to_fs_path(document.uri) or "")
    try:
        if not document.uri.startswith("file:"):
            raise FileNotFoundError
        on_disk = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        raise InputError("the document is not a file on disk", hint="save it first") from None
    if plain(on_disk) != document.plain:
        raise InputError("the document has unsaved changes", hint="save it first: the job reads the file", file=path)
