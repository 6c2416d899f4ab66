"""Comments that tell how a `.cu` file is called: `// hiera: ...`.

A kernel's text does not say which sizes it is run with. These lines do, and stay ordinary comments
for every other tool:

    // hiera: entry row_argmax
    // hiera: arg x in float32[4096, 1024]
    // hiera: arg index out int64[4096]
    // hiera: arg columns 1024
    // hiera: launch grid=(4096) block=(256) shared=0
    // hiera: returns int64[4096]
    // hiera: reference torch.argmax(x, dim=1)

`entry` names the host function, launcher or kernel (default: the only one). `arg NAME` gives a
parameter: `in`, `out` or `inout` with dtype and shape for pointers and tensors, or a number. `launch`
is for a bare kernel. `returns` is for a host function that returns tensors. `reference` is a Python
expression over `torch` and the arguments; without it the file itself is the reference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contracts.cuda_sites import CudaFunction
from contracts.errors import InputError
from contracts.tensors import ITEM_BYTES, TensorSpec

_LINE = re.compile(r"^\s*//\s*hiera:\s*(?P<word>\w+)\s*(?P<rest>.*?)\s*$")
_TENSOR = re.compile(r"^(?P<dtype>\w+)\s*\[(?P<shape>[^\]]*)\]$")
_LAUNCH_PART = re.compile(
    r"(grid|block|shared)\s*=\s*(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\S+)"
)
_FLOW = ("in", "out", "inout")
DTYPE_OF_C = {
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "int": "int32", "int32_t": "int32",
    "unsigned": "int32", "unsigned int": "int32", "long": "int64", "int64_t": "int64", "long long": "int64",
    "size_t": "int64", "char": "int8", "int8_t": "int8", "unsigned char": "uint8", "uint8_t": "uint8",
    "bool": "bool", "short": "int16", "int16_t": "int16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PragmaArgument:
    """One `arg` line. A tensor has `flow` and `tensor`, a number has `value`."""

    name: str
    flow: Literal["in", "out", "inout"] | None = None
    tensor: TensorSpec | None = None
    value: int | float | bool | None = None
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PragmaLaunch:
    """How a bare kernel is launched: C++ expressions for each dimension, shared memory in bytes."""

    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared_bytes: str = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pragmas:
    """All `// hiera:` lines of a file."""

    entry: str | None = None
    arguments: tuple[PragmaArgument, ...] = ()
    launch: PragmaLaunch | None = None
    returns: tuple[TensorSpec, ...] = ()
    reference: str | None = None

    def named(self, name: str) -> PragmaArgument | None:
        """The argument called `name`."""
        return next((a for a in self.arguments if a.name == name), None)


def read_pragmas(text: str, file: str | Path) -> Pragmas:
    """Read the pragma lines of `text`.

    Raises:
        InputError: A line is not of the form above; it names `file` and the line.
    """
    entry: str | None = None
    reference: str | None = None
    launch: PragmaLaunch | None = None
    arguments: list[PragmaArgument] = []
    returns: list[TensorSpec] = []
    for number, line in enumerate(text.splitlines(), start=1):
        found = _LINE.match(line)
        if found is None:
            continue
        word, rest = found["word"], found["rest"]
        place = _Place(file, number)
        if word == "entry":
            entry = rest
        elif word == "reference":
            reference = rest
        elif word == "arg":
            arguments.append(_argument(rest, place))
        elif word == "returns":
            returns.extend(_tensor(part, place) for part in _split_tensors(rest))
        elif word == "launch":
            launch = _launch(rest, place)
        else:
            raise place.error(
                f"unknown pragma {word!r}", "use entry, arg, launch, returns or reference"
            )
    return Pragmas(
        entry=entry, arguments=tuple(arguments), launch=launch, returns=tuple(returns), reference=reference
    )


def pragma_template(function: CudaFunction) -> str:
    """Pragma lines for `function` with sizes to fill in, one line each, ending with a newline."""
    lines = [f"// hiera: entry {function.name}"]
    for parameter in function.parameters:
        if parameter.type == "cudaStream_t":
            continue
        dtype = DTYPE_OF_C.get(parameter.type, "float32")
        if parameter.pointer:
            flow = "in" if parameter.const else "out"
            lines.append(f"// hiera: arg {parameter.name} {flow} {dtype}[1024]")
        elif parameter.is_tensor:
            lines.append(f"// hiera: arg {parameter.name} in float32[1024]")
        else:
            lines.append(f"// hiera: arg {parameter.name} {'1024' if 'int' in dtype else '1.0'}")
    if function.kind == "kernel":
        lines.append("// hiera: launch grid=(4) block=(256) shared=0")
    elif function.takes_tensors and "Tensor" in function.returns:
        lines.append("// hiera: returns float32[1024]")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Place:
    file: str | Path
    line: int

    def error(self, problem: str, hint: str) -> InputError:
        return InputError(problem, hint=hint, file=self.file, line=self.line)


def _argument(rest: str, place: _Place) -> PragmaArgument:
    name, _, value = rest.partition(" ")
    value = value.strip().removeprefix("=").strip()
    flow, _, layout = value.partition(" ")
    if flow in _FLOW:
        return PragmaArgument(
            name=name, flow=flow, tensor=_tensor(layout.strip(), place), line=place.line  # type: ignore[arg-type]
        )
    if value in ("true", "false"):
        return PragmaArgument(name=name, value=value == "true", line=place.line)
    for kind in (int, float):
        try:
            return PragmaArgument(name=name, value=kind(value), line=place.line)
        except ValueError:
            continue
    raise place.error(
        f"argument {name!r} has the value {value!r}",
        "write `arg NAME in float32[1024, 1024]` for a pointer or tensor, `arg NAME 1024` for a number",
    )


def _tensor(text: str, place: _Place) -> TensorSpec:
    found = _TENSOR.match(text)
    if found is None or found["dtype"] not in ITEM_BYTES:
        raise place.error(
            f"{text!r} is not a tensor layout", "write a torch dtype and sizes, such as float32[4096, 1024]"
        )
    try:
        shape = tuple(int(part) for part in found["shape"].split(",") if part.strip())
    except ValueError:
        raise place.error(f"the sizes in {text!r} are not whole numbers", "write numbers only") from None
    return TensorSpec.contiguous(found["dtype"], shape)


def _split_tensors(text: str) -> list[str]:
    return [part.strip() for part in re.findall(r"\w+\s*\[[^\]]*\]", text)] or [text]


def _launch(rest: str, place: _Place) -> PragmaLaunch:
    parts: dict[str, str] = dict(_LAUNCH_PART.findall(rest))
    if "grid" not in parts or "block" not in parts:
        raise place.error(f"launch {rest!r} names no grid or no block", "write launch grid=(64, 1, 1) block=(256)")
    return PragmaLaunch(
        grid=_dimensions(parts["grid"]), block=_dimensions(parts["block"]), shared_bytes=parts.get("shared", "0")
    )


def _dimensions(text: str) -> tuple[str, ...]:
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    parts, depth, part = [], 0, ""
    for character in inner:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    return (*parts, part.strip())
