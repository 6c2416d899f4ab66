"""The contract folder: five files that people and `load_inline` read, and `contract.json` with everything."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cattrs

from contracts import codec
from contracts.contract import Argument, Contract
from contracts.cuda_adaptor import host_signature, returns_of
from contracts.demo import torch_demo
from contracts.errors import ContractError, InputError

FILES = ("groundtruth.py", "cpp_source.cpp", "params_semantics.json", "torch_demo.py", "cuda_source.cu")


# pybind11's own unpacking compiles in time quadratic in the arguments, and not at all for more than 512.
MANY_ARGUMENTS = 48
_UNPACKED = """
// So many arguments come as one tuple: pybind11 would take minutes to compile them one by one, or refuse.
template <typename Result, typename... Types, std::size_t... Places>
Result unpacked(Result (*function)(Types...), const pybind11::args& given, std::index_sequence<Places...>) {{
    return function(given[Places].template cast<std::decay_t<Types>>()...);
}}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{
    m.def("{entry}", [](const pybind11::args& given) {{
        if (given.size() != {count}) {{
            throw pybind11::type_error("{entry} takes {count} arguments");
        }}
        return unpacked(&{entry}, given, std::make_index_sequence<{count}>());
    }});
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The host function that `cpp_source.cpp` declares.

    Attributes:
        entry: The C++ function's name.
        parameters: (type, name) in order; the name is empty where the declaration has none.
        returns: Return type as written.
    """

    entry: str
    parameters: tuple[tuple[str, str], ...]
    returns: str


def declaration(contract: Contract) -> str:
    """The host function's declaration, without a semicolon."""
    return host_signature(contract.entry, contract.arguments, returns_of(len(contract.outputs)))


def binding(contract: Contract) -> str:
    """Text of cpp_source.cpp: the bare declaration, which `load_inline` binds; for very many arguments, bound here."""
    declared = f"#include <torch/extension.h>\n\n{declaration(contract)};\n"
    count = len(contract.arguments)
    return declared if count <= MANY_ARGUMENTS else declared + _UNPACKED.format(entry=contract.entry, count=count)


def write_folder(
    folder: Path,
    contract: Contract,
    *,
    groundtruth: str,
    signature: str,
    modules: Sequence[Mapping[str, object]] = (),
    source: str | None = None,
) -> None:
    """Write the folder. `cuda_source.cu` is written only when `source` is given.

    Args:
        folder: Made if it is not there.
        contract: Its `reference_sha256` must be the hash of `groundtruth`.
        groundtruth: Text of groundtruth.py.
        signature: Parameters of forward as Python text, without self, such as `x, h0=None`.
        modules: Facts about submodules: path, type, attributes.
        source: Text of cuda_source.cu.

    Raises:
        InputError: The folder cannot be written.
    """
    texts = {
        "groundtruth.py": groundtruth,
        "cpp_source.cpp": binding(contract),
        "params_semantics.json": json.dumps(semantics(contract, modules), indent=1) + "\n",
        "torch_demo.py": torch_demo(contract, signature),
        "contract.json": json.dumps(codec.to_data(contract), separators=(",", ":")) + "\n",
    }
    if source is not None:
        texts["cuda_source.cu"] = source
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the contract folder cannot be written: {error.strerror or error}",
            hint="free space, or choose another folder with --out", file=folder,
        ) from None


def read_contract(folder: Path) -> Contract | None:
    """The contract in `contract.json`, or None when there is none or groundtruth.py was edited since.

    Raises:
        ContractError: The file is not a contract.
    """
    path = folder / "contract.json"
    if not path.exists():
        return None
    try:
        contract = codec.from_data(json.loads(path.read_text(encoding="utf-8")), Contract)
    except (ValueError, KeyError, TypeError, cattrs.BaseValidationError) as error:
        raise ContractError(
            f"this is not a contract: {type(error).__name__}", hint="delete it; it is made again from the other files",
            file=path,
        ) from None
    if contract.reference == "cuda":
        return contract
    truth = folder / "groundtruth.py"
    if not truth.exists() or sha256(truth.read_text(encoding="utf-8")) != contract.reference_sha256:
        return None
    return contract


def declared(folder: Path) -> Declared:
    """Read `cpp_source.cpp`: a bare declaration, or a PYBIND11_MODULE that names a declared function.

    Raises:
        ContractError: The file is missing or declares no single function.
    """
    path = folder / "cpp_source.cpp"
    if not path.exists():
        raise ContractError(
            "there is no cpp_source.cpp", file=path,
            hint="declare the host function in it, such as `torch::Tensor relu_forward(torch::Tensor x);`",
        )
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^\s*#[^\n]*", " ", text, flags=re.MULTILINE)
    bound = re.findall(r"\.def\s*\(\s*\"\w+\"\s*,\s*&\s*(?:\w+::)*(\w+)", text)
    found = [
        Declared(entry=name, parameters=_parameters(parameters), returns=" ".join(returns.split()))
        for returns, name, parameters in re.findall(
            r"([\w:<>,&*\s]+?)[\s&*]+(\w+)\s*\(([^(){};]*)\)\s*(?:;|\{)", text)
        if returns.split() and returns.split()[-1] not in ("return", "else", "new") and name != "PYBIND11_MODULE"
    ]
    wanted = [d for d in found if d.entry in bound] if bound else found
    unique = {d.entry: d for d in wanted}
    if len(unique) == 1:
        return next(iter(unique.values()))
    forward = [d for d in unique.values() if d.entry.endswith("forward")]
    if len(forward) == 1:
        return forward[0]
    names = ", ".join(unique) or "none"
    raise ContractError(
        f"cpp_source.cpp must declare one host function; it declares: {names}", file=path,
        hint="declare one function, or let the name of the one that is meant end in `forward`",
    )


def semantics(contract: Contract, modules: Sequence[Mapping[str, object]] = ()) -> dict[str, object]:
    """What params_semantics.json holds: every argument in order, with its meaning."""
    kinds = {str(part["path"]): str(part["type"]) for part in modules}
    return {
        "entry": contract.entry,
        "declaration": declaration(contract),
        "mode": contract.mode,
        "precision": contract.precision,
        "random": contract.random,
        "arguments": [_argument(a, kinds, contract) for a in contract.arguments],
        "outputs": [
            {"dtype": o.dtype, "shape": list(o.shape), "stride": list(o.stride)} for o in contract.outputs
        ],
        "output_tree": codec.to_data(contract.output_tree),
        "modules": [dict(part) for part in modules],
        "shape_variants": [
            {"name": v.name, "shapes": {name: list(t.shape) for name, t in v.tensors.items()}}
            for v in contract.variants
        ],
        "free_dimensions": [[list(pair) for pair in group] for group in contract.free_dims],
        "notes": list(contract.notes),
    }


def sha256(text: str) -> str:
    """Hash of a text file's content."""
    return hashlib.sha256(text.encode()).hexdigest()


def _argument(argument: Argument, kinds: Mapping[str, str], contract: Contract) -> dict[str, object]:
    found: dict[str, object] = {"name": argument.name, "role": argument.role, "path": argument.path}
    if argument.tensor is None:
        return {**found, "value": argument.value, "meaning": f"argument `{argument.path}` of forward, a constant"}
    tensor = argument.tensor
    owner, _, last = argument.path.rpartition(".")
    meaning = (
        f"argument `{argument.path}` of forward" if argument.role == "input"
        else f"{argument.role} `{last}` of {kinds.get(owner, 'the module')}" + (f" `{owner}`" if owner else "")
    )
    constraints = ["contiguous" if tensor.is_contiguous else f"stride {list(tensor.stride)}"]
    if argument.low is not None and argument.high is not None:
        constraints.append(f"the example's values lie in {argument.low}..{argument.high}")
    free = sorted(dim for group in contract.free_dims for name, dim in group if name == argument.name)
    if free:
        constraints.append(f"dimensions {free} may take other sizes")
    return {
        **found, "dtype": tensor.dtype, "shape": list(tensor.shape), "stride": list(tensor.stride),
        "mutable": argument.mutable, "meaning": meaning, "constraints": constraints,
    }


def _parameters(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for part in _split(text):
        words = re.sub(r"=.*", "", part, flags=re.DOTALL).replace("&", " ").replace("*", " ").split()
        words = [w for w in words if w != "const"]
        if not words or words == ["void"]:
            continue
        types = ("int", "long", "double", "float", "bool")
        named = len(words) > 1 and words[-1].isidentifier() and words[-1] not in types
        found.append((" ".join(words[:-1]), words[-1]) if named else (" ".join(words), ""))
    return tuple(found)


def _split(text: str) -> list[str]:
    """Split at commas outside of template brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]
