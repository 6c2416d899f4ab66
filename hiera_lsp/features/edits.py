"""Edits that the user asked for: built for the text as it is now, one undo step, never sent unasked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lsprotocol import types
from pygls import uris

from contracts.errors import InputError
from hiera_lsp import positions
from hiera_lsp.documents import BOM, Document, newline_of, plain, split_lines
from hiera_lsp.results import Result
from hiera_lsp.session import Client, Session
from hiera_lsp.sites import EditorSite, text_hash

# The first file says that the folder is ours, also while the others are missing.
OURS = "params_semantics.json"
FILES = (OURS, "torch_demo.py", "cpp_source.cpp", "groundtruth.py", "cuda_source.cu")
ANNOTATION = "hiera"
Change = types.TextDocumentEdit | types.CreateFile | types.RenameFile | types.DeleteFile


def candidate_text(result: Result) -> str:
    """The text that the chosen candidate would put into the user's file, without our adaptor.

    Raises:
        InputError: The stored source is gone.
    """
    from contracts.cuda_adaptor import without_adaptor

    try:
        if result.candidate is None:
            raise FileNotFoundError
        return without_adaptor(Path(result.candidate.source).read_text(encoding="utf-8"))
    except OSError:
        raise InputError(
            f"the source of candidate {result.chosen} is no longer stored", hint="run Optimize kernel again"
        ) from None


def accept_edit(session: Session, document: Document, result: Result) -> types.WorkspaceEdit:
    """The edit that accepts the chosen candidate.

    For a `.cu` document it replaces the lines that differ. For a module it writes the contract folder.

    Raises:
        InputError: The candidate's files are gone.
    """
    label = f"HIERA: kernel {result.chosen}"
    if document.is_cuda:
        return text_edit(session.client, document, accepted_text(document, result), label)
    folder = output_folder(session, document, result)
    return types.WorkspaceEdit(
        document_changes=folder_changes(session, document, folder, folder_texts(result)),
        change_annotations=annotations(session.client, label, confirm=not is_ours(folder)),
    )


def accepted_text(document: Document, result: Result) -> str:
    """The document's text once the candidate is in it: its own line ends, mark and last line's end."""
    new_text = plain(candidate_text(result))
    old = document.plain
    if old:
        # The adaptor that was cut off took the text's last line end with it.
        new_text = new_text.rstrip("\n") + old[len(old.rstrip("\n")) :]
    if document.source.startswith(BOM):
        new_text = BOM + new_text
    return new_text.replace("\n", newline_of(document.source))


def accepted_hash(document: Document, site: EditorSite, result: Result) -> str:
    """The site's hash once the candidate is accepted, where the kernel is in the document's text then; else empty."""
    if document.is_cuda:
        return text_hash(accepted_text(document, result))
    # A module's text stays: an earlier use of the kernel that was undone counts no more.
    return result.applied_hash if result.applied_hash == site.text_hash else ""


def insert_inputs(session: Session, document: Document, site: EditorSite) -> types.WorkspaceEdit:
    """The edit that adds example inputs: a `get_inputs` stub, or pragma lines above the function."""
    if document.is_cuda:
        place = types.Position(max(0, site.span.start_line), 0)
        new_text = site.stub
    else:
        place = positions.whole(document.lines, document.position_codec).end
        ends = not document.lines or document.lines[-1].endswith(("\n", "\r"))
        new_text = ("" if ends else "\n") + site.stub
    new_text = new_text.replace("\n", newline_of(document.source))
    edit = types.TextEdit(range=types.Range(place, place), new_text=new_text)
    return document_edits(session.client, document, [edit], f"HIERA: example inputs for {site.symbol}")


def import_root(file: Path) -> Path:
    """The folder that the file's own imports start from: its own, or the one above its outermost package."""
    folder = file.parent
    while (folder / "__init__.py").exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def output_folder(session: Session, document: Document, result: Result) -> Path:
    """Where the contract folder of a module goes: where the module's imports start, so that it can import it."""
    base = import_root(Path(uris.to_fs_path(document.uri) or "untitled").absolute())
    return base / session.settings_of(document.uri).output_folder / result.summary.name


def folder_texts(result: Result) -> dict[str, str]:
    """The files of the contract folder with the chosen candidate's source.

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
    """True for a folder that we wrote, or that does not exist or is empty."""
    try:
        return (folder / OURS).exists() or not folder.exists() or not any(folder.iterdir())
    except OSError:  # A file has its name, or it cannot be read.
        return False


def safe_texts(session: Session, folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """`texts`, and copies of what the user changed in the files that they replace.

    Raises:
        InputError: A file cannot be read.
    """
    try:
        kept = session.written.kept(folder, texts)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}", hint="set hiera.outputFolder") from None
    except UnicodeDecodeError:
        raise InputError(f"a file in {folder} is not UTF-8 text and would be replaced", hint="move it away") from None
    # Known before they are written: whoever finds exactly this text in a file loses nothing when it is replaced.
    session.written.add(texts.values())
    return {**kept, **texts}


def folder_changes(session: Session, document: Document, folder: Path, texts: Mapping[str, str]) -> list[Change]:
    """Changes that make the folder's files hold `texts`; files that hold them already are left alone.

    Raises:
        InputError: A file cannot be read.
    """
    annotation = ANNOTATION if session.client.annotations else None
    changes: list[Change] = []
    for name, text in safe_texts(session, folder, texts).items():
        path = folder / name
        uri = uris.from_fs_path(str(path)) or ""
        place = types.Range(types.Position(0, 0), types.Position(0, 0))
        if path.exists():
            old = path.read_bytes().decode("utf-8", "replace")
            if old == text:
                continue
            place = positions.whole(split_lines(old), document.position_codec)
        else:
            options = types.CreateFileOptions(overwrite=False, ignore_if_exists=False)
            changes.append(types.CreateFile(uri=uri, annotation_id=annotation, options=options))
        edit = types.TextEdit(range=place, new_text=text)
        changes.append(_edit_of(types.OptionalVersionedTextDocumentIdentifier(uri=uri), [edit], annotation))
    return changes


def text_edit(client: Client, document: Document, new_text: str, label: str) -> types.WorkspaceEdit:
    """The edit that turns the document's text into `new_text`, touching only lines that differ."""
    return document_edits(client, document, line_edits(document, new_text), label)


def line_edits(document: Document, new_text: str) -> list[types.TextEdit]:
    """Edits that turn the document's text into `new_text`, line by line."""
    import difflib

    old, new = document.lines, split_lines(new_text)
    codec = document.position_codec
    # What both ends share is cut off first: comparing thousands of equal lines takes seconds.
    head = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    limit = min(len(old), len(new)) - head
    tail = next((i for i in range(limit) if old[-1 - i] != new[-1 - i]), limit)
    # Lines such as `}` are matched beside rarer ones only: each with each takes many seconds in a large file.
    matcher = difflib.SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail])
    return [
        types.TextEdit(
            range=types.Range(
                positions.line_start(head + i, old, codec), positions.line_start(head + j, old, codec)
            ),
            new_text="".join(new[head + k : head + m]),
        )
        for tag, i, j, k, m in matcher.get_opcodes() if tag != "equal"
    ]


def document_edits(
    client: Client, document: Document, text_edits: list[types.TextEdit], label: str, more: list[Change] | None = None,
    *, confirm: bool = False,
) -> types.WorkspaceEdit:
    """Edits of the user's document, and `more` changes after them: some clients check the first version only."""
    if not client.versioned_edits:
        return types.WorkspaceEdit(changes={document.uri: text_edits})
    identifier = types.OptionalVersionedTextDocumentIdentifier(uri=document.uri, version=document.version)
    annotation = ANNOTATION if client.annotations else None
    return types.WorkspaceEdit(
        document_changes=[_edit_of(identifier, text_edits, annotation), *(more or ())],
        change_annotations=annotations(client, label, confirm=confirm),
    )


def annotations(client: Client, label: str, *, confirm: bool) -> dict[str, types.ChangeAnnotation] | None:
    """The entry that every annotated change names; None for clients without annotations."""
    if not client.annotations:
        return None
    return {ANNOTATION: types.ChangeAnnotation(label=label, needs_confirmation=confirm)}


def _edit_of(
    identifier: types.OptionalVersionedTextDocumentIdentifier, text_edits: list[types.TextEdit], annotation: str | None
) -> types.TextDocumentEdit:
    if annotation is None:
        return types.TextDocumentEdit(text_document=identifier, edits=list(text_edits))
    annotated = [
        types.AnnotatedTextEdit(range=edit.range, new_text=edit.new_text, annotation_id=annotation)
        for edit in text_edits
    ]
    return types.TextDocumentEdit(text_document=identifier, edits=list(annotated))
