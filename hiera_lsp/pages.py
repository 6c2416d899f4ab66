"""The pages of the manual that come with HIERA: in an installed one inside the package, in a checkout beside it."""

from __future__ import annotations

from pathlib import Path

from pygls import uris

HERE = Path(__file__).resolve().parent


def page_uri(name: str, heading: str = "") -> str | None:
    """Where page `name` is, at a heading if one is given; None where the pages are missing."""
    path = next((p for p in (HERE / "docs" / name, HERE.parent / "docs" / name) if p.is_file()), None)
    uri = uris.from_fs_path(str(path)) if path is not None else None
    return f"{uri}#{heading}" if uri and heading else uri
