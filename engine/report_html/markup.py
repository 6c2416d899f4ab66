"""HTML and SVG as text. Whatever is not markup already is escaped, so that forgetting it is not possible."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

VOID = frozenset({"br", "col", "meta"})
# Shapes have no content; in HTML only those of SVG may close themselves.
SHAPES = frozenset({"circle", "line", "path", "polyline", "rect"})
# Controls that HTML forbids, and marks that let a name show in another order than it is written.
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | int | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element.

    Args:
        name: The element's name.
        children: Texts, which are escaped, and markup; None is nothing.
        attributes: Their names with `_` for `-`; a trailing `_` is dropped, so that `class_` can be written.
            None and False leave one out, True writes its name alone.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(value)}"')
        for key, value in attributes.items() if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{given}>")
    inner = joined(children)
    if name in SHAPES and not inner:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{inner}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """Children one after the other."""
    return Markup("".join(map(_child, children)))


def text(value: object) -> Markup:
    """Any text, escaped, with what cannot be seen made visible."""
    if isinstance(value, float):
        value = f"{value:.6g}"
    return Markup(UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", escape(str(value))))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int)):
        return text(child)
    return joined(child)
