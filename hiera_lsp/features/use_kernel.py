"""Feature: use the kernel in the module. Two lines in the user's file, `kernel.py` in the contract folder."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls import uris

from contracts.errors import InputError
from hiera_lsp.documents import Document, newline_of
from hiera_lsp.features import edits
from hiera_lsp.results import Result
from hiera_lsp.session import Session
from hiera_lsp.sites import EditorSite, find_python

KERNEL = "kernel.py"


def why_not(session: Session, document: Document, result: Result) -> str:
    """Why the kernel cannot be used in the module; empty when it can."""
    try:
        _import_of(document, edits.output_folder(session, document, result))
    except InputError as error:
        return error.problem
    return ""


def use_edit(session: Session, document: Document, site: EditorSite, result: Result) -> tuple[types.WorkspaceEdit, str]:
    """The edit, and the hash that the site's text has once it is applied.

    Raises:
        InputError: The files are gone, or no guard can tell whether a call is inside the contract.
    """
    folder = edits.output_folder(session, document, result)
    text = used_text(document, site, folder, result)
    changes: list[edits.Change] = []
    if session.client.create_files:
        changes = edits.folder_changes(session, document, folder, all_texts(document, result))
    edit = edits.document_edits(
        session.client, document, edits.line_edits(document, text), f"HIERA: use kernel {result.chosen}", changes,
        confirm=not edits.is_ours(folder),
    )
    after = next((s.text_hash for s in find_python(text).sites if s.symbol == site.symbol), "")
    return edit, after


def all_texts(document: Document, result: Result) -> dict[str, str]:
    """The files of the contract folder and `kernel.py`."""
    return {**edits.folder_texts(result), KERNEL: kernel_text(document, result)}


def kernel_text(document: Document, result: Result) -> str:
    """The text of `kernel.py`.

    Raises:
        InputError: The run's contract is gone, or there is no guard for it.
    """
    from contracts import codec
    from contracts.contract import Contract
    from contracts.guarded import guarded_kernel

    folder = Path(result.summary.folder) / "contract"
    try:
        contract = codec.from_data(json.loads((folder / "contract.json").read_text(encoding="utf-8")), Contract)
        semantics = json.loads((folder / "params_semantics.json").read_text(encoding="utf-8"))
        signature = _signature((folder / "torch_demo.py").read_text(encoding="utf-8"))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the stored files, the way out is the same.
        raise InputError(f"the run's contract cannot be read: {error}", hint="run Optimize kernel again") from None
    return guarded_kernel(
        contract, signature, semantics.get("modules", ()), source=edits.candidate_text(result), sm=result.summary.sm,
        module_text=document.source,
    )


def used_text(document: Document, site: EditorSite, folder: Path, result: Result) -> str:
    """The document's text with the import and the decorator."""
    from contracts.guarded import ascii_name

    module = _import_of(document, folder)
    alias = f"accelerate_{ascii_name(result.summary.name)}"
    newline = newline_of(document.source)
    lines = list(document.lines)
    if any(line.strip() == f"@{alias}" for line in lines[site.span.start_line : site.name_span.start_line]):
        return document.source  # In place since an earlier kernel.
    header = lines[site.name_span.start_line]
    indentation = header[: len(header) - len(header.lstrip())]
    # Innermost, right above the class: other decorators see the class as it will be.
    lines.insert(site.name_span.start_line, f"{indentation}@{alias}{newline}")
    at = _import_line(document)
    if at > 0 and not lines[at - 1].endswith(("\n", "\r")):
        lines[at - 1] += newline
    lines.insert(at, f"from {module} import accelerate as {alias}{newline}")
    return "".join(lines)


def _import_line(document: Document) -> int:
    """The line of the new import: after the last import at the top, else after the module's own docstring."""
    try:
        body = ast.parse(document.source.removeprefix("\ufeff")).body
    except (SyntaxError, ValueError):
        raise InputError("the file does not parse", hint="mend it first") from None
    line = 0
    for number, node in enumerate(body):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (number == 0 and is_text):
            line = node.end_lineno or node.lineno
        else:
            break
    return line


def _import_of(document: Document, folder: Path) -> str:
    root = edits.import_root(Path(uris.to_fs_path(document.uri) or "untitled").absolute())
    try:
        parts = (folder / Path(KERNEL).stem).relative_to(root).parts
    except ValueError:
        parts = ("..",)
    if not all(part.isidentifier() for part in parts):
        raise InputError(f"the module cannot import from {folder}",
                         hint="set hiera.outputFolder to a name such as hiera_kernels")
    return ".".join(parts)


def _signature(demo: str) -> str:
    """Parameters of ModelNew.forward, without self."""
    for node in ast.parse(demo).body:
        if isinstance(node, ast.ClassDef) and node.name == "ModelNew":
            forward: Any = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
            first = forward.args.posonlyargs or forward.args.args
            first.pop(0)
            return ast.unparse(forward.args)
    raise InputError("torch_demo.py has no ModelNew", hint="run Optimize kernel again")
