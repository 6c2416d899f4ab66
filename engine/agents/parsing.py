"""What a model answered, checked: a plan, a strategy, a source. Nothing is taken that was not asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.llm.jsontext import json_values, without_thoughts
from engine.llm.redact import plain as plain_line
from engine.llm.shapes import WrongShapeError, mapping, number, object_schema, sentence, sentences
from engine.records import Score

LARGEST_SOURCE = 200_000
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+.-]*)[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
_EDIT = re.compile(r"^<{5,9} ?SEARCH[^\n]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} ?REPLACE", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^\W*title\W*:\W*(.+)$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Decision:
    """A model's SSDA answer."""

    space: str
    space_reason: str
    scores: Mapping[str, Score]

    @property
    def direction(self) -> str:
        """The direction with the highest score (paper, equation 4); among equals the first."""
        return max(self.scores, key=lambda code: self.scores[code].value)


def plan_schema(spaces: Sequence[str], directions: Sequence[str]) -> dict[str, Any]:
    """Schema of the SSDA's answer."""
    score = object_schema({"score": {"type": "number"}, "reason": {"type": "string"}})
    return object_schema({
        "space": {"type": "string", "enum": list(spaces)}, "space_reason": {"type": "string"},
        "scores": object_schema(dict.fromkeys(directions, score)),
    })


def strategy_schema() -> dict[str, Any]:
    """Schema of the SPA's answer."""
    texts = {"type": "array", "items": {"type": "string"}}
    return object_schema({"steps": texts, "constraints": texts})


def read_plan(value: Any, spaces: Sequence[str], directions: Sequence[str]) -> Decision:
    """The SSDA's answer.

    Raises:
        WrongShapeError: It names a space that is not allowed, lacks a direction, or a score is out of range.
    """
    plan = mapping(value, ("space", "space_reason", "scores"), "the answer")
    if plan["space"] not in spaces:
        raise WrongShapeError(f"`space` is {str(plan['space'])[:40]!r}, but must be one of {', '.join(spaces)}")
    rows = mapping(plan["scores"], tuple(directions), "`scores`")
    scores = {}
    for code in directions:
        row = mapping(rows[code], ("score", "reason"), f"the score of {code}")
        scores[code] = Score(value=round(number(row["score"], f"the score of {code}", 0, 10), 2),
                             reason=sentence(row["reason"], f"the reason of {code}"))
    return Decision(plan["space"], sentence(plan["space_reason"], "`space_reason`"), scores)


def read_strategy(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The SPA's answer: steps and constraints.

    Raises:
        WrongShapeError: One of them is missing or no list of texts.
    """
    found = mapping(value, ("steps", "constraints"), "the answer")
    return sentences(found["steps"], "`steps`", least=1), sentences(found["constraints"], "`constraints`")


def read_source(text: str, entry: str, base: str | None = None) -> tuple[str, str]:
    """The OA's answer: a title and the text of cuda_source.cu.

    Args:
        text: The answer: a whole file, or edits of `base`.
        entry: The function that must be there.
        base: The source that edits are about, or None where there is none.

    Raises:
        WrongShapeError: There is no whole source with the entry function, or an edit does not fit.
    """
    plain = without_thoughts(text).replace("\r\n", "\n")
    edits = [(match[1], match[2]) for match in _EDIT.finditer(plain)]
    if edits and base is not None:
        source = _edited(base, edits)
        if not _defines(source, entry):
            raise WrongShapeError(f"after the edits the file no longer defines the function {entry}")
        return _title(plain.split("<<<<<")[0]), source
    blocks = [match[3] for match in _FENCE.finditer(plain)]
    with_entry = [block for block in blocks if _defines(block, entry)]
    if with_entry:
        source = max(with_entry, key=len)
    elif _defines(plain, entry) and plain.lstrip().startswith(("#include", "//", "/*")) and "```" not in plain:
        source = plain  # The file without a fence.
    elif (wrapped := _wrapped(plain, entry)) is not None:
        source = wrapped
    elif plain.count("```") % 2:
        raise WrongShapeError("the code block does not end, so the file is not whole")
    elif blocks:
        raise WrongShapeError(f"the code block does not define the function {entry}")
    else:
        raise WrongShapeError("there is no code block with the whole file")
    if len(source) > LARGEST_SOURCE:
        raise WrongShapeError(f"the file is {len(source)} characters long, more than {LARGEST_SOURCE}")
    if source.count("{") != source.count("}") and _COMMENT.sub("", source).rstrip()[-1:] not in ("}", ";"):
        raise WrongShapeError("the file ends in the middle of a function")
    return _title(plain.split("```")[0]), source.strip("\n") + "\n"


def fingerprint(source: str) -> str:
    """The text without comments and spaces: sources that differ only there are one candidate."""
    return "".join(without_comments(source).split())


def bare(source: str) -> str:
    """The text without comments and empty lines, as a prompt shows it where it is short of room."""
    return "\n".join(line.rstrip() for line in without_comments(source).splitlines() if line.strip())


def without_comments(source: str) -> str:
    """The text without comments."""
    return _COMMENT.sub("", source)


def _title(head: str) -> str:
    title = _TITLE.search(head)
    return plain_line(title[1]).strip(" *`\"'")[:80] if title else ""


def _edited(base: str, edits: Sequence[tuple[str, str]]) -> str:
    """The source with the edits made: in the text as it stands, or as it was shown without comments."""
    problem: WrongShapeError | None = None
    for text in (_trimmed(base).rstrip("\n") + "\n", bare(base) + "\n"):
        try:
            for old, new in edits:
                text = _replaced(text, _trimmed(old), new)
        except WrongShapeError as error:
            problem = problem or error
            continue
        return text.rstrip("\n") + "\n"
    assert problem is not None
    raise problem


def _replaced(text: str, old: str, new: str) -> str:
    if not old.strip():
        raise WrongShapeError("an edit searches for nothing")
    count = text.count(old)
    if count != 1:
        first = old.strip().splitlines()[0][:80]
        where = "do not stand in the source" if count == 0 else f"stand there {count} times; give more of them"
        raise WrongShapeError(f"the lines of the edit that begins with {first!r} {where}")
    return text.replace(old, new)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _defines(text: str, entry: str) -> bool:
    return re.search(rf"\b{re.escape(entry)}\s*\(", _COMMENT.sub("", text)) is not None


def _wrapped(text: str, entry: str) -> str | None:
    """Some models put the file into a JSON object anyway."""
    for value in json_values(text):
        if isinstance(value, Mapping):
            texts = [item for item in value.values() if isinstance(item, str) and _defines(item, entry)]
            if texts:
                return max(texts, key=len)
    return None
