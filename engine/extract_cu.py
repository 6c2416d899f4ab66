"""Contracts from `.cu` files: the file as it stands is candidate 0, and the reference where no other is given."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from contracts import codec
from contracts.contract import Argument, Contract, Precision, Variant
from contracts.cuda_adaptor import adapted_source, choose_function, contract_arguments, host_signature, returns_of
from contracts.cuda_pragmas import read_pragmas
from contracts.cuda_sites import parse_cuda
from contracts.errors import InputError
from contracts.tensors import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaExtraction:
    """A `.cu` file in the contract form.

    Attributes:
        contract: What candidates must do.
        folder: Where the five files were written.
        source: The user's text plus the adaptor: candidate 0.
        function: Name of the user's function that is optimised.
    """

    contract: Contract
    folder: Path
    source: str
    function: str


async def extract_cu(
    file: Path, name: str | None, *, out: Path, python: str, precision: Precision = "match"
) -> CudaExtraction:
    """Write the contract folder of a `.cu` file into `out`.

    Raises:
        InputError: The file is missing, has no such function, or its pragma lines do not say how to call it.
    """
    text = _read(file)
    beside = file.parent / "groundtruth.py"
    if file.name == "cuda_source.cu" and beside.exists():
        return await _contract_form(file, text, python=python, precision=precision)
    pragmas = read_pragmas(text, file)
    function = choose_function(parse_cuda(text), pragmas, name, str(file))
    arguments, outputs = contract_arguments(function, pragmas, str(file))
    if function.takes_tensors:
        entry = function.name
        returns = function.returns
    else:
        entry = f"{_identifier(function.name)}_forward"
        returns = returns_of(len(outputs))
    source = adapted_source(text, function, pragmas, entry, str(file))
    if pragmas.reference is not None and any(a.mutable for a in arguments):
        raise InputError(
            "a reference expression cannot describe an inout argument",
            hint="remove the `// hiera: reference` line; the file itself is then the reference", file=file,
        )
    out.mkdir(parents=True, exist_ok=True)
    signature = host_signature(entry, arguments, returns)
    _write_folder(out, text, source, signature, entry, arguments, outputs, pragmas.reference)
    variant = Variant(
        name="example", tensors={a.name: a.tensor for a in arguments if a.tensor is not None}, outputs=outputs
    )
    contract = Contract(
        name=_identifier(function.name),
        entry=entry,
        arguments=arguments,
        output_tree=0 if len(outputs) == 1 else {"tuple": list(range(len(outputs)))},
        variants=(variant,),
        precision=precision,
        reference="cuda",
        reference_sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    if pragmas.reference is not None:
        contract = await _with_graph(contract, out, python=python)
    (out / "contract.json").write_text(json.dumps(codec.to_data(contract), indent=1), encoding="utf-8")
    return CudaExtraction(contract=contract, folder=out, source=source, function=function.name)


async def _contract_form(file: Path, text: str, *, python: str, precision: Precision) -> CudaExtraction:
    from engine.extract import read_folder

    extraction = await read_folder(file.parent, python=python)
    contract = replace(extraction.contract, precision=precision)
    return CudaExtraction(contract=contract, folder=extraction.folder, source=text, function=contract.entry)


async def _with_graph(contract: Contract, folder: Path, *, python: str) -> Contract:
    """Take the operator graph from the reference expression, so that the expert can write from scratch."""
    from engine.extract import read_folder

    found = (await read_folder(folder, python=python)).contract
    if found.outputs != contract.outputs:
        made = ", ".join(map(str, found.outputs))
        wanted = ", ".join(map(str, contract.outputs))
        raise InputError(
            f"the reference gives {made} but the file declares {wanted}",
            hint="correct `// hiera: reference` or the output's layout", file=folder / "groundtruth.py",
        )
    return replace(contract, reference="function", variants=found.variants)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError("there is no such file", hint="check the path", file=file) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"the file is not UTF-8 text (byte {error.start})", hint="save it as UTF-8", file=file
        ) from None
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror}"
        raise InputError(problem, hint="check its permissions", file=file) from None


def _write_folder(
    out: Path,
    text: str,
    source: str,
    signature: str,
    entry: str,
    arguments: tuple[Argument, ...],
    outputs: tuple[TensorSpec, ...],
    reference: str | None,
) -> None:
    names = ", ".join(a.name for a in arguments)
    (out / "cuda_source.cu").write_text(source, encoding="utf-8")
    (out / "reference.cu").write_text(source, encoding="utf-8")
    (out / "cpp_source.cpp").write_text(f"#include <torch/extension.h>\n\n{signature};\n", encoding="utf-8")
    body = reference if reference is not None else f"_extension().{entry}({names})"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    loader = "" if reference is not None else _LOADER.format(entry=entry, digest=digest)
    inputs = "".join(f"        {_python_input(a)},\n" for a in arguments)
    (out / "groundtruth.py").write_text(
        _GROUNDTRUTH.format(loader=loader, names=names, body=body, inputs=inputs), encoding="utf-8"
    )
    (out / "torch_demo.py").write_text(
        _DEMO.format(entry=entry, names=names, arguments=f"self, {names}"), encoding="utf-8"
    )
    semantics = {
        "entry": entry,
        "arguments": [codec.to_data(a) for a in arguments],
        "outputs": [codec.to_data(o) for o in outputs],
    }
    (out / "params_semantics.json").write_text(json.dumps(semantics, indent=2) + "\n", encoding="utf-8")


_GROUNDTRUTH = '''"""The reference of a .cu file, and inputs for it."""

import torch
{loader}

def reference({names}):
    return {body}


def get_inputs(seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return [
{inputs}    ]
'''
_LOADER = '''
from functools import cache
from pathlib import Path


@cache
def _extension():
    from torch.utils.cpp_extension import load_inline

    here = Path(__file__).parent
    return load_inline(
        name="hiera_reference_{digest}",
        cpp_sources=here.joinpath("cpp_source.cpp").read_text(),
        cuda_sources=here.joinpath("reference.cu").read_text(),
        functions=["{entry}"],
    )
'''
_DEMO = '''"""Runs the kernel of cuda_source.cu through PyTorch's own extension builder."""

import hashlib
from functools import cache
from pathlib import Path

import torch
from torch.utils.cpp_extension import load_inline

HERE = Path(__file__).parent


@cache
def extension():
    source = HERE.joinpath("cuda_source.cu").read_text()
    return load_inline(
        name="hiera_" + hashlib.sha256(source.encode()).hexdigest()[:12],
        cpp_sources=HERE.joinpath("cpp_source.cpp").read_text(),
        cuda_sources=source,
        functions=["{entry}"],
        extra_cuda_cflags=["-lineinfo"],
    )


class ModelNew(torch.nn.Module):
    def forward({arguments}):
        return extension().{entry}({names})
'''


def _python_input(argument: Argument) -> str:
    if argument.tensor is None:
        return repr(argument.value)
    dtype, shape = argument.tensor.dtype, argument.tensor.shape
    if argument.tensor.is_floating:
        return f"torch.randn({shape}, generator=generator).to(torch.{dtype}).to(device)"
    if dtype == "bool":
        return f"(torch.rand({shape}, generator=generator) < 0.5).to(device)"
    return f"torch.randint(0, 100, {shape}, generator=generator).to(torch.{dtype}).to(device)"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)
