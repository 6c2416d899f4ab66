"""Reads prompt files with strict holes, fills them, and shortens material in a stated order until it fits.

The order, and what is never shortened, stands in `engine/prompts/README.md` and in `ORDER`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from contracts.errors import ContractError
from engine.llm.budget import tokens_of
from engine.llm.errors import ModelError

FOLDER = Path(__file__).parent.parent / "prompts"
_KNOWN = frozenset({"tried", "failures", "evidence", "best"})
_TASK = frozenset({"contract", "reference", "graph"})
HOLES: Mapping[str, frozenset[str]] = {
    "system": frozenset(),
    "ssda": _TASK | _KNOWN | {"round", "workload", "device", "spaces", "directions", "rubric", "transfer", "notes"},
    "spa": _TASK | _KNOWN | {"workload", "device", "decision", "space", "notes"},
    "oa": _TASK | _KNOWN | {"rules", "workload", "device", "space", "notes", "strategy", "variation"},
    "oa_unplanned": _TASK | _KNOWN | {"rules", "device", "variation"},
    "oa_bare": (_KNOWN - {"evidence"}) | {"entry", "reference", "device", "variation"},
    "repair": _TASK | {"rules", "space", "candidate", "failure"},
    "repair_bare": frozenset({"entry", "reference", "candidate", "failure"}),
    "rules": frozenset(),
    "rules_no_gpu": frozenset({"sizes"}),
}
# What is shortened when a prompt is too long, one step at a time, first to last. A name may come twice: each time it
# takes the next shorter form that its material has.
ORDER = ("tried", "notes", "failures", "evidence", "tried", "notes", "failures", "evidence", "graph", "graph",
         "reference", "best", "best")
# A text for every hole, or several, the fullest first, for what may be shortened.
Material = Mapping[str, str | tuple[str, ...]]
_HOLE = re.compile(r"\{\{([^{}]*)\}\}")


class Prompts:
    """All prompt files, checked when they are read.

    Args:
        folder: A user's folder; its files replace ours by name.

    Raises:
        ContractError: A file cannot be read, or its holes are not the ones it must have.
    """

    def __init__(self, folder: str = "") -> None:
        if folder and not Path(folder).is_dir():
            raise ContractError("the folder of prompts does not exist", hint="correct llm.prompts", file=folder)
        self._texts = {name: _read(name, folder) for name in HOLES}
        self.variations = _variations(folder)

    def fill(self, name: str, material: Material, *, limit: int) -> tuple[tuple[str, str], ...]:
        """The messages of a question, within `limit` tokens.

        Args:
            name: The prompt.
            material: For every hole.
            limit: Most tokens, by our careful estimate.

        Raises:
            ModelError: Even the shortest form is too long.
            ContractError: The material does not fit the holes.
        """
        forms = {key: (value,) if isinstance(value, str) else value for key, value in material.items()}
        level = dict.fromkeys(forms, 0)
        steps = [key for key in ORDER if key in forms]
        while True:
            filled = self.text(name, {key: texts[level[key]] for key, texts in forms.items()})
            size = tokens_of(self._texts["system"]) + tokens_of(filled)
            if size <= limit:
                return ("system", self._texts["system"]), ("user", filled)
            step = next((i for i, key in enumerate(steps) if level[key] + 1 < len(forms[key])), None)
            if step is None:
                raise ModelError("context", f"the prompt {name} needs about {size} tokens or more, not {limit}",
                                 hint="raise llm.promptTokens, or use the expert for a module of this size")
            level[steps.pop(step)] += 1

    def text(self, name: str, material: Mapping[str, str]) -> str:
        """One prompt with all its holes filled.

        Raises:
            ContractError: The material does not fit the holes.
        """
        if set(material) != HOLES[name]:
            odd = sorted(set(material) ^ HOLES[name])
            raise ContractError(f"the prompt {name} and its material disagree about {', '.join(odd)}",
                                hint="report this; it is a fault of HIERA", file=f"{name}.md")
        # One pass, so that braces in the material are not taken for holes.
        text = _HOLE.sub(lambda match: material[match[1]], self._texts[name])
        return re.sub(r"\n{3,}", "\n\n", text).strip()


def data(title: str, text: str) -> str:
    """`text` from outside, fenced and labelled as data; empty stays empty.

    The id comes from the text itself, so nothing inside can close the fence, and the same text gives the same
    prompt.
    """
    if not text.strip():
        return ""
    clean = "".join(c for c in text if c in "\n\t" or c.isprintable()).strip("\n")
    mark = hashlib.sha256(clean.encode("utf-8", "replace")).hexdigest()[:8]
    return f'<data id="{mark}" title="{title}">\n{clean}\n</data id="{mark}">'


def _read(name: str, folder: str) -> str:
    path = _place(f"{name}.md", folder)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"the prompt cannot be read: {error}", hint="mend the file or take it away",
                            file=path) from None
    for number, line in enumerate(text.splitlines(), 1):
        for hole in _HOLE.findall(line):
            if hole not in HOLES[name]:
                raise ContractError(f"the hole {{{{{hole}}}}} is unknown", file=path, line=number,
                                    hint=f"use {', '.join(sorted(HOLES[name])) or 'none'}")
        if "{{" in _HOLE.sub("", line) or "}}" in _HOLE.sub("", line):
            raise ContractError("a hole is not closed", hint="write it like {{name}}", file=path, line=number)
    missing = sorted(HOLES[name] - set(_HOLE.findall(text)))
    if missing:
        raise ContractError(f"the prompt lacks {', '.join(missing)}", file=path,
                            hint="add " + ", ".join(f"{{{{{hole}}}}}" for hole in missing))
    return text


def _variations(folder: str) -> tuple[str, ...]:
    path = _place("variations.md", folder)
    lines = tuple(line[2:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("- "))
    if not lines:
        raise ContractError("there are no variations", hint="write lines that begin with `- `", file=path)
    return lines


def _place(name: str, folder: str) -> Path:
    own = Path(folder) / name if folder else None
    return own if own is not None and own.is_file() else FOLDER / name
