"""Sections and tables: every table has a caption and headers that a reader can announce."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from engine.report_html.markup import Child, Markup, tag


def section(identity: str, title: str, *children: Child) -> Markup:
    """A part of the page with its heading."""
    return tag("section", tag("h2", title, id=f"{identity}-heading"), *children, id=identity,
               aria_labelledby=f"{identity}-heading")


def plot_section(identity: str, title: str, sentence: str, picture: Markup | None = None,
                 numbers: Markup | None = None, legend: Markup | None = None) -> Markup:
    """A plot: what it says in a sentence, the picture, and the same as a table."""
    return section(
        identity, title, tag("p", sentence, id=f"{identity}-says"),
        tag("figure", picture, legend) if picture is not None else None,
        tag("details", tag("summary", f"{title} as a table"), numbers, id=f"{identity}-numbers")
        if numbers is not None else None,
    )


def table(caption: str, heads: Sequence[Child], rows: Iterable[Sequence[Child]], *, numeric: Collection[int] = (),
          hidden: bool = False, ids: Sequence[str] = (), class_: str | None = None) -> Markup:
    """A table that scrolls by itself where it is too wide; the first cell of a row is its header.

    Args:
        caption: What it shows.
        heads: Column headers.
        rows: Cells; markup stays, texts are escaped. A row may already be a `tr`.
        numeric: Columns of numbers, which are set right.
        hidden: The caption repeats a heading: only readers of the page by ear need it.
        ids: Ids of rows, for links.
        class_: For its look.
    """
    head = tag("thead", tag("tr", [tag("th", text, scope="col", class_="number" if i in numeric else None)
                                   for i, text in enumerate(heads)]))
    body = []
    for index, cells in enumerate(rows):
        first, *rest = cells
        body.append(tag("tr", tag("th", first, scope="row"), [
            tag("td", cell, class_="number" if i in numeric else None) for i, cell in enumerate(rest, 1)
        ], id=ids[index] if ids else None))
    return tag("div", tag("table", tag("caption", caption, class_="unseen" if hidden else None), head,
                          tag("tbody", body), class_=class_),
               class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(caption: str, rows: Iterable[Sequence[Child]]) -> Markup:
    """Numbers with how each of them is known."""
    return table(caption, ("what", "value", "how it is known"), rows, hidden=True, class_="facts")


def how(word: str) -> Markup:
    """A mark that says how a number is known."""
    kind = next((kind for kind in ("measured", "estimated", "emulated") if word.startswith(kind)), "absent")
    return tag("span", word, class_=f"how {kind}")
