"""A user's own `.cu` file, when a model rewrites it: its interface stays, the adaptor stays ours."""

from __future__ import annotations

import re
from dataclasses import dataclass

from contracts.cuda_adaptor import MARK
from contracts.cuda_sites import parse_cuda
from contracts.cuda_splice import with_bindings
from contracts.folder import declaration
from engine.agents import Situation
from engine.agents.prompts import data
from engine.llm.shapes import WrongShapeError

_PRAGMA = re.compile(r"^[ \t]*//[ \t]*hiera:.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFile:
    """The file as it stands.

    Attributes:
        text: The user's text.
        adaptor: What HIERA appends so that the judge can call it, from its mark on; empty where none is needed.
        function: The function that is optimised.
        offered: Functions that others may call, and that must stay.
    """

    text: str
    adaptor: str
    function: str
    offered: tuple[str, ...]

    def told(self, situation: Situation) -> str:
        """What a model must know to keep the file usable."""
        kept = f"keep {', '.join(self.offered)} with exactly the same parameters"
        first = (f"This is the user's own file, and your answer replaces it: {kept}, everything else that the file "
                 "offers, and every line `// hiera:`.")
        lines = [first]
        if self.adaptor:
            fixed = " The launch in it is fixed: grid and block stay as they are." if "<<<" in self.adaptor else ""
            lines.append("Write only the part above the line with `hiera: the adaptor`, without torch headers; the "
                         f"rest is appended again and defines `{declaration(situation.contract)}`.{fixed}")
            lines.append(data("the adaptor, which stays as it is", self.adaptor))
        return "\n".join(lines)

    def complete(self, source: str) -> str:
        """A model's text made whole: lost `// hiera:` lines, Python bindings and our adaptor put back.

        Raises:
            WrongShapeError: A function that others may call is gone.
        """
        text = source.split(MARK)[0].rstrip("\n")
        names = {function.name for function in parse_cuda(text).functions}
        if lost := [name for name in self.offered if name not in names]:
            raise WrongShapeError(f"the file no longer defines {', '.join(lost)}, which the user's file offers")
        kept = {line.strip() for line in _PRAGMA.findall(text)}
        missing = [line for line in _PRAGMA.findall(self.text) if line.strip() not in kept]
        whole = with_bindings("\n".join([*missing, text]) + "\n", self.text)
        return whole + self.adaptor


def own_file(situation: Situation) -> OwnFile | None:
    """The user's own file, where the job is about one; None for modules and contract folders."""
    own = next((c for c in situation.trajectory.candidates if c.round == 0), None)
    if own is None or (MARK not in own.source and not _PRAGMA.search(own.source)):
        return None
    text, mark, rest = own.source.partition("\n" + MARK)
    adaptor = (mark + rest).lstrip("\n")
    entry = situation.contract.entry
    found = parse_cuda(text)
    function = entry.removesuffix("_forward") if adaptor else entry
    if found.named(function) is None:
        return None  # An adaptor of another kind: the text is treated like any other.
    offered = [f.name for f in found.functions if f.name == function or f.kind == "launcher" or f.takes_tensors]
    return OwnFile(text=text, adaptor=adaptor, function=function, offered=tuple(dict.fromkeys(offered)))
