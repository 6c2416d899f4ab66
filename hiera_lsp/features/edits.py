"""Edits that the user asked for: built for the text as it is now, one undo step, never sent unasked."""

from __future__ import annotations

import difflib
from pathlib import Path

from lsprotocol import types
from pygls import uris
from pygls.workspace import TextDocument

from contracts.cuda_adaptor import without_adaptor
from contracts.errors import InputError
from hiera_lsp import positions
from hiera_lsp.results import Result
from hiera_lsp.session import Client, Session
from hiera_lsp.sites import EditorSite, is_cuda

FILES = ("torch_demo.py", "cpp_source.cpp", "groundtruth.py", "params_semantics.json", "cuda_source.cu")
ANNOTATION = "hiera"


def candidate_text(result: Result, candidate: str | None = None) -> str:
    """The text a candidate would put into the user's file, without our adaptor.

    Raises:
        InputError: The stored source is gone.
    """
    wanted = candidate or result.chosen
    found = next((c for c in result.summary.candidates if c.id == wanted), None)
    try:
        if found is None:
            raise FileNotFoundError
        return without_adaptor(Path(found.source).read_text(encoding="utf-8"))
    except OSError:
        raise InputError(
            f"the source of candidate {wanted} is no longer stored", hint="run Optimize kernel again"
        ) from None


def accept_edit(session: Session, document: TextDocument, result: Result) -> types.WorkspaceEdit:
    """The edit that accepts the chosen candidate.

    For a `.cu` document it replaces the lines that differ. For a module it writes the contract folder.

    Raises:
        InputError: The candidate's files are gone.
    """
    if is_cuda(document.uri):
        return _replace(session.client, document, candidate_text(result), f"HIERA: kernel {result.chosen}")
    return _folder(session, document, result)


def insert_inputs(session: Session, document: TextDocument, site: EditorSite) -> types.WorkspaceEdit:
    """The edit that adds example inputs: a `get_inputs` stub, or pragma lines above the function."""
    if is_cuda(document.uri):
        line = max(0, site.span.start_line)
        place = types.Position(line, 0)
        new_text = site.stub
    else:
        place = positions.whole(document.lines, document.position_codec).end
        ends = not document.lines or document.lines[-1].endswith(("\n", "\r"))
        new_text = ("" if ends else "\n") + site.stub
    new_text = new_text.replace("\n", _newline(document.source))
    edit = types.TextEdit(range=types.Range(place, place), new_text=new_text)
    return _workspace_edit(session.client, document, [edit], f"HIERA: example inputs for {site.symbol}")


def output_folder(session: Session, document: TextDocument, result: Result) -> Path:
    """Where the contract folder of a module goes: in the workspace folder, else beside the file."""
    path = Path(uris.to_fs_path(document.uri) or ".")
    base = Path(session.folder_of(document.uri) or path.parent)
    return base / session.settings_of(document.uri).output_folder / result.summary.name


def folder_texts(result: Result) -> dict[str, str]:
    """The five files of the contract folder with the chosen candidate's source.

    Raises:
        InputError: They are gone.
    """
    contract = Path(result.summary.folder) / "contract"
    texts = {}
    for name in FILES:
        if name == "cuda_source.cu":
            texts[name] = candidate_text(result)
            continue
        try:
            texts[name] = contract.joinpath(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{contract / name} cannot be read: {error.strerror}", hint="run the job again") from None
    return texts


def is_ours(folder: Path) -> bool:
    """True for a folder that we wrote, or that does not exist."""
    return not folder.exists() or (folder / "params_semantics.json").exists()


def _folder(session: Session, document: TextDocument, result: Result) -> types.WorkspaceEdit:
    folder = output_folder(session, document, result)
    label = f"HIERA: kernel {result.chosen}"
    annotation = ANNOTATION if session.client.annotations else None
    changes: list[types.TextDocumentEdit | types.CreateFile | types.RenameFile | types.DeleteFile] = []
    for name, text in folder_texts(result).items():
        path = folder / name
        uri = uris.from_fs_path(str(path)) or ""
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            place = positions.whole(lines, document.position_codec)
        else:
            changes.append(
                types.CreateFile(
                    uri=uri, annotation_id=annotation,
                    options=types.CreateFileOptions(overwrite=False, ignore_if_exists=False),
                )
            )
            place = types.Range(types.Position(0, 0), types.Position(0, 0))
        edit = types.TextEdit(range=place, new_text=text)
        changes.append(_document_edit(types.OptionalVersionedTextDocumentIdentifier(uri=uri), [edit], annotation))
    return types.WorkspaceEdit(
        document_changes=changes, change_annotations=_annotations(session.client, label, confirm=not is_ours(folder))
    )


def _replace(client: Client, document: TextDocument, new_text: str, label: str) -> types.WorkspaceEdit:
    newline = _newline(document.source)
    if document.source.startswith("\ufeff"):
        new_text = "\ufeff" + new_text.removeprefix("\ufeff")
    new_lines = new_text.replace("\r\n", "\n").replace("\n", newline).splitlines(keepends=True)
    old_lines = document.lines
    edits = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        place = types.Range(_line_start(i, document), _line_start(j, document))
        edits.append(types.TextEdit(range=place, new_text="".join(new_lines[k:m])))
    return _workspace_edit(client, document, edits, label)


def _line_start(line: int, document: TextDocument) -> types.Position:
    if line < len(document.lines):
        return types.Position(line, 0)
    return positions.whole(document.lines, document.position_codec).end


def _workspace_edit(
    client: Client, document: TextDocument, edits: list[types.TextEdit], label: str
) -> types.WorkspaceEdit:
    if not client.versioned_edits:
        return types.WorkspaceEdit(changes={document.uri: edits})
    identifier = types.OptionalVersionedTextDocumentIdentifier(uri=document.uri, version=document.version)
    annotation = ANNOTATION if client.annotations else None
    return types.WorkspaceEdit(
        document_changes=[_document_edit(identifier, edits, annotation)],
        change_annotations=_annotations(client, label, confirm=False),
    )


def _document_edit(
    identifier: types.OptionalVersionedTextDocumentIdentifier, edits: list[types.TextEdit], annotation: str | None
) -> types.TextDocumentEdit:
    if annotation is None:
        return types.TextDocumentEdit(text_document=identifier, edits=list(edits))
    annotated = [
        types.AnnotatedTextEdit(range=edit.range, new_text=edit.new_text, annotation_id=annotation) for edit in edits
    ]
    return types.TextDocumentEdit(text_document=identifier, edits=list(annotated))


def _annotations(client: Client, label: str, *, confirm: bool) -> dict[str, types.ChangeAnnotation] | None:
    if not client.annotations:
        return None
    return {ANNOTATION: types.ChangeAnnotation(label=label, needs_confirmation=confirm)}


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
