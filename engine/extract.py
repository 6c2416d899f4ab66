"""From a PyTorch module to a contract folder: the probe looks at the file, this module writes down what it found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contracts import codec
from contracts.contract import Argument, Contract, Precision, Variant
from contracts.errors import HieraError, InputError, ToolError, WorkerDiedError, WorkerError, WorkerTimeoutError
from contracts.folder import sha256, write_folder
from contracts.groundtruth import Origin, groundtruth_text
from contracts.python_sites import PythonSite, default_site, find_sites
from engine.example_inputs import InputScript, configured_script, project_root
from engine.processes import Worker

REDUCE_LIMIT_S = 60.0


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
    request = {
        "file": str(file), "root": str(root), "name": chosen, "line": site.name_span.start_line + 1 if site else None,
        "script": str(inputs.file) if inputs else None, "function": inputs.function if inputs else None,
    }
    async with Probe(python, file, timeout_s=timeout_s, on_event=on_event) as probe:
        found = await probe.call("extract", timeout_s=timeout_s, **request)
        origin = _origin(found, file, text, chosen, inputs)
        truth = groundtruth_text(origin)
        contract = contract_of(found, chosen, truth, precision)
        write_folder(out, contract, groundtruth=truth, signature=found["signature"], modules=found["modules"],
                     source=source)
        done = Extraction(contract=contract, folder=out, site=site, modules=tuple(found["modules"]))
        return await _with_reduced(done, probe, request, origin, chosen) if reduce else done


class Probe:
    """The probe process, with its failures said in the user's words."""

    def __init__(
        self, python: str, file: Path, *, timeout_s: float, on_event: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self._file = file
        self._python = python
        self._on_event = on_event
        self._timeout_s = timeout_s
        self._stage = "starting"
        # The probe works on fake tensors: it must neither need nor hold a GPU.
        self._worker = Worker("probe", python=python, cwd=file.parent, env={"CUDA_VISIBLE_DEVICES": ""})

    async def __aenter__(self) -> Probe:
        """Start nothing yet: the process starts with the first call."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the process."""
        await self._worker.close()

    async def call(self, kind: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """One request.

        Raises:
            InputError: The user's code refused, hung, or ended the process.
            ToolError: The interpreter does not run or has no torch.
        """
        self._stage = "importing the file"
        try:
            return await self._worker.call(kind, timeout_s=timeout_s, on_event=self._event, **fields)
        except WorkerTimeoutError:
            raise InputError(
                f"{self._stage} took longer than {timeout_s:g} s",
                hint='put slow code under `if __name__ == "__main__":`, or raise the limit', file=self._file,
            ) from None
        except WorkerDiedError as error:
            if "No module named 'torch'" in error.log_tail:
                raise ToolError(
                    f"{self._python} has no torch", hint="name the interpreter that has it with --python"
                ) from None
            raise InputError(
                f"{self._stage} ended the interpreter ({error.problem})", hint=error.hint, file=self._file
            ) from None
        except FileNotFoundError:
            raise ToolError(
                f"there is no interpreter {self._python}", hint="name one that exists with --python"
            ) from None
        except PermissionError as error:
            raise ToolError(f"cannot run {self._python}: {error.strerror}", hint="name another with --python") from None

    def _event(self, event: dict[str, Any]) -> None:
        self._stage = {"imported": "building the module and its inputs", "built": "tracing forward"}.get(
            event.get("event", ""), self._stage
        )
        if self._on_event is not None:
            self._on_event(event)


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
            hint="name the class if it is made at run time: FILE::NAME", file=file, line=1,
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
        own_inputs=told["own_inputs"] and inputs is None,
        script=str(inputs.file) if inputs is not None else "",
        function=(inputs.function if inputs is not None else "") or "get_inputs",
        script_has_init_inputs=told["script_has_init_inputs"],
    )


async def _with_reduced(
    done: Extraction, probe: Probe, request: Mapping[str, Any], origin: Origin, name: str
) -> Extraction:
    """Add the reduced contract; its absence is a fact, not a failure."""
    try:
        found = await probe.call("reduce", timeout_s=REDUCE_LIMIT_S, **request)
    except (HieraError, WorkerError) as error:
        return replace(done, reduced_reason=f"no smaller sizes were found: {error.problem}")
    if found.get("reason"):
        return replace(done, reduced_reason=found["reason"])
    edits = [tuple(edit) for edit in found["edits"]]
    script_edits = [tuple(edit) for edit in found["script_edits"]]
    truth = groundtruth_text(origin, edits, script_edits)
    contract = contract_of(found, name, truth, done.contract.precision)
    if not _same_call(contract, done.contract):
        return replace(done, reduced_reason="at smaller sizes the module has other arguments")
    folder = done.folder / "reduced"
    write_folder(folder, contract, groundtruth=truth, signature=found["signature"], modules=found["modules"])
    return replace(done, reduced=contract, reduced_folder=folder, reduced_reason=found["changed"])


def _same_call(a: Contract, b: Contract) -> bool:
    return [(x.name, x.role) for x in a.arguments] == [(x.name, x.role) for x in b.arguments]


