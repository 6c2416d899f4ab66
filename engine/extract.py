"""From a PyTorch module to a contract folder: the probe looks at the file, this module writes down what it found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contracts import codec
from contracts.contract import Argument, Contract, Precision, Variant
from contracts.errors import ContractError, HieraError, InputError
from contracts.folder import declared, read_contract, sha256, write_folder
from contracts.groundtruth import Origin, groundtruth_text
from contracts.python_sites import PythonSite, default_site, find_sites
from engine.example_inputs import InputScript, configured_script, project_root
from engine.handwritten import arranged, read_semantics
from engine.probing import Probe

REDUCE_LIMIT_S = 150.0  # The search stops itself long before; importing and tracing come on top.


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """A contract and its folder.

    Attributes:
        contract: What candidates must do.
        folder: The contract folder; it has no cuda_source.cu until someone writes one.
        reduced: The same module at sizes that a CPU can emulate, or None.
        reduced_folder: Its folder, `reduced` in `folder`.
        reduced_reason: Why there is no reduced contract, or what was made smaller.
        site: The class or function in the user's text; None for a folder written by hand.
        modules: Facts about submodules: path, type, attributes.
    """

    contract: Contract
    folder: Path
    reduced: Contract | None = None
    reduced_folder: Path | None = None
    reduced_reason: str = ""
    site: PythonSite | None = None
    modules: tuple[Mapping[str, object], ...] = ()


async def extract(
    file: Path,
    name: str | None,
    *,
    out: Path,
    python: str,
    precision: Precision = "match",
    timeout_s: float = 120.0,
    source: str | None = None,
    inputs: InputScript | None = None,
    reduce: bool = True,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    probe: Probe | None = None,
) -> Extraction:
    """Write the contract folder of a module class or function into `out`.

    Args:
        file: The user's Python file.
        name: Class or function, dotted for nested ones; None when the file leaves no doubt.
        out: Where to write.
        python: The user's interpreter, which has torch.
        precision: The policy stored in the contract.
        timeout_s: Limit for importing and tracing.
        source: Text of cuda_source.cu, if there is one already.
        inputs: A script that gives the example inputs; it goes before `get_inputs()` in the file.
        reduce: Also make the reduced contract.
        on_event: Told `imported`, `built` and the like.
        probe: The file's probe where it was begun ahead; it is ended here.

    Raises:
        InputError: The file, the module or its inputs cannot be used as they are; says where and what to do.
        ToolError: `python` does not run or has no torch.
    """
    file = file.resolve()
    text = read_text(file)
    site = _choose(find_sites(text), name, file)
    chosen = name or (site.name if site is not None else "")
    root = project_root(file)
    if inputs is None and (site is None or not site.has_example_inputs):
        inputs = configured_script(file, chosen, root)
    if inputs is not None and not inputs.file.is_file():
        raise InputError("there is no such file with example inputs", hint="check the path", file=inputs.file)
    request = {
        "file": str(file), "root": str(root), "name": chosen, "line": site.name_span.start_line + 1 if site else None,
        "script": str(inputs.file) if inputs else None, "function": inputs.function if inputs else None,
    }
    async with probe or Probe(python, file) as probe:
        probe.on_event = on_event
        found = await probe.call("extract", timeout_s=timeout_s, **request)
        origin = _origin(found, file, text, chosen, inputs)
        truth = groundtruth_text(origin)
        contract = contract_of(found, chosen, truth, precision)
        write_folder(out, contract, groundtruth=truth, signature=found["signature"], modules=found["modules"],
                     source=source)
        done = Extraction(contract=contract, folder=out, site=site, modules=tuple(found["modules"]))
        if not reduce:
            return done

        def describe(found: Mapping[str, Any], truth: str) -> Contract:
            return contract_of(found, chosen, truth, precision)

        return await _with_reduced(done, probe, request, origin, describe, out / "reduced")


async def read_folder(
    folder: Path,
    *,
    python: str,
    precision: Precision = "match",
    timeout_s: float = 120.0,
    reduced_out: Path | None = None,
) -> Extraction:
    """Read a contract folder, ours or one written by hand.

    Ours has a contract.json that still fits groundtruth.py. Otherwise groundtruth.py is probed (`Model`, or
    `reference`), and cpp_source.cpp and params_semantics.json say what the host function takes.

    Args:
        folder: The contract folder; nothing is written into it.
        python: The user's interpreter.
        precision: The policy, where the folder does not say one.
        timeout_s: Limit for importing and tracing.
        reduced_out: Where to write a reduced contract of a folder written by hand; None for none.

    Raises:
        ContractError: A file of the folder is missing or breaks the form.
        InputError: groundtruth.py cannot be used as it is.
    """
    folder = folder.resolve()
    contract = read_contract(folder)
    if contract is not None:
        small = folder / "reduced"
        reduced = read_contract(small) if small.is_dir() else None
        return Extraction(
            contract=contract, folder=folder, reduced=reduced, reduced_folder=small if reduced is not None else None,
            modules=tuple(_modules(folder)),
        )
    file = folder / "groundtruth.py"
    if not file.exists():
        raise ContractError(
            "there is no groundtruth.py in this folder", file=folder,
            hint="write one with Model, get_inputs and get_init_inputs, or with reference and get_inputs",
        )
    text = read_text(file)
    function = declared(folder)
    site = next((s for name in ("Model", "reference") for s in find_sites(text) if s.name == name), None)
    name = site.name if site is not None else "Model" if re.search(r"^\s*Model\b", text, re.MULTILINE) else "reference"
    request = {"file": str(file), "root": str(folder), "name": name, "line": None, "script": None, "function": None}
    async with Probe(python, file) as probe:
        found = await probe.call("extract", timeout_s=timeout_s, **request)
        title = function.entry.removesuffix("_forward") or "kernel"
        told = read_semantics(folder)

        def arrange(found: Mapping[str, Any], truth: str) -> Contract:
            unused = tuple(codec.from_data(a, Argument) for a in found["unused"])
            contract = contract_of(found, title, truth, precision)
            return arranged(contract, function, unused, told, found["modules"], folder)

        done = Extraction(contract=arrange(found, text), folder=folder, modules=tuple(found["modules"]))
        if reduced_out is None:
            return done
        origin = _origin(found, file, text, name, None)
        return await _with_reduced(done, probe, request, origin, arrange, reduced_out)


def contract_of(found: Mapping[str, Any], name: str, truth: str, precision: Precision) -> Contract:
    """The contract that a probe's reply describes."""
    identifier = snake(name)
    variants = tuple(codec.from_data(v, Variant) for v in found["variants"])
    return Contract(
        name=identifier,
        entry=f"{identifier}_forward",
        arguments=tuple(codec.from_data(a, Argument) for a in found["arguments"]),
        output_tree=found["output_tree"],
        variants=variants,
        mode=found["mode"],
        precision=precision,
        random=found["random"],
        reference=found["kind"],
        reference_sha256=sha256(truth),
        flags=found["flags"],
        notes=tuple(found["notes"]),
        free_dims=tuple(tuple((a, d) for a, d in group) for group in found["free_dims"]),
    )


def snake(name: str) -> str:
    """`Outer.SelfAttention` as a C++ identifier: `outer_self_attention`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"\W+", "_", words).strip("_").lower() or "kernel"


def read_text(file: Path) -> str:
    """The file's text.

    Raises:
        InputError: It is not there, not a file, or not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError("there is no such file", hint="check the path", file=file) from None
    except IsADirectoryError:
        raise InputError("this is a folder", hint="name a .py or .cu file in it", file=file) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"the file is not UTF-8 text (byte {error.start})", hint="save it as UTF-8", file=file
        ) from None
    except OSError as error:
        raise InputError(
            f"the file cannot be read: {error.strerror}", hint="check its permissions", file=file
        ) from None


def _modules(folder: Path) -> list[Mapping[str, object]]:
    """Facts about submodules as params_semantics.json of our own folders keeps them."""
    try:
        data = json.loads((folder / "params_semantics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return list(data.get("modules", [])) if isinstance(data, dict) else []


def _choose(sites: tuple[PythonSite, ...], name: str | None, file: Path) -> PythonSite | None:
    if name is not None:
        # A class made at import time is not in the text; the probe looks for it.
        return next((s for s in sites if s.name == name), None)
    site = default_site(sites)
    if site is not None:
        return site
    if not sites:
        # Perhaps the text has a syntax error: importing it says which. `Model` is the convention.
        try:
            compile(file.read_text(encoding="utf-8-sig"), str(file), "exec")
        except SyntaxError as error:
            raise InputError(
                f"syntax error: {error.msg}", hint="correct the syntax", file=file, line=error.lineno
            ) from None
        except ValueError as error:
            raise InputError(f"not a Python file: {error}", hint="name a .py file", file=file) from None
        raise InputError(
            "no class here derives from torch.nn.Module, and no function takes tensors",
            hint="annotate the function's tensors, as in `def f(x: torch.Tensor)`, or name what is meant: FILE::NAME",
            file=file, line=1,
        )
    names = ", ".join(s.name for s in sites)
    raise InputError(
        f"several classes or functions could be meant: {names}", hint="name one: FILE::NAME", file=file,
        line=sites[0].name_span.start_line + 1,
    )


def _origin(found: Mapping[str, Any], file: Path, text: str, name: str, inputs: InputScript | None) -> Origin:
    told = found["origin"]
    return Origin(
        file=str(file),
        text=text,
        kind=found["kind"],
        qualified=name,
        module_name=told["module_name"],
        entries=tuple(told["entries"]),
        stands_alone=told["stands_alone"],
        has_init_inputs=told["has_init_inputs"],
        plain_inputs=told["plain_inputs"],
        plain_init=told["plain_init"],
        own_inputs=told["own_inputs"] and inputs is None,
        script=str(inputs.file) if inputs is not None else "",
        function=(inputs.function if inputs is not None else "") or "get_inputs",
        script_has_init_inputs=told["script_has_init_inputs"],
    )


async def _with_reduced(
    done: Extraction,
    probe: Probe,
    request: Mapping[str, Any],
    origin: Origin,
    describe: Callable[[Mapping[str, Any], str], Contract],
    folder: Path,
) -> Extraction:
    """Add the reduced contract; its absence is a fact, not a failure."""
    try:
        found = await probe.call("reduce", timeout_s=REDUCE_LIMIT_S, **request)
    except HieraError as error:
        return replace(done, reduced_reason=f"no smaller sizes were found: {error.problem}")
    if found.get("reason"):
        return replace(done, reduced_reason=found["reason"])
    edits = [tuple(edit) for edit in found["edits"]]
    script_edits = [tuple(edit) for edit in found["script_edits"]]
    truth = groundtruth_text(origin, edits, script_edits)
    contract = describe(found, truth)
    if not _same_call(contract, done.contract):
        return replace(done, reduced_reason="at smaller sizes the module has other arguments")
    write_folder(folder, contract, groundtruth=truth, signature=found["signature"], modules=found["modules"])
    return replace(done, reduced=contract, reduced_folder=folder, reduced_reason=found["changed"])


def _same_call(a: Contract, b: Contract) -> bool:
    return [(x.name, x.role) for x in a.arguments] == [(x.name, x.role) for x in b.arguments]


