"""The text of `groundtruth.py`: a copy of the user's file, or a loader of it where it cannot stand alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Start, end (characters) and the new text: how a reduced contract changes the sizes in the user's file.
Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the reference comes from.

    Attributes:
        file: The user's file, absolute.
        text: Its text.
        kind: `module` or `function`.
        qualified: The class or function in it.
        module_name: Its dotted name when it belongs to a package, else empty.
        entries: Folders that must be importable, in sys.path order.
        stands_alone: False when the file needs others of its project.
        has_init_inputs: It defines get_init_inputs().
        plain_inputs: get_inputs() gives a list with one value for each argument of forward.
        plain_init: get_init_inputs() gives a list of positional arguments.
        own_inputs: get_inputs is an attribute of the class itself.
        script: File with get_inputs when it is another one, absolute; else empty.
        function: Function in `script` that gives the inputs.
        script_has_init_inputs: `script` defines get_init_inputs().
    """

    file: str
    text: str
    kind: str
    qualified: str
    module_name: str = ""
    entries: tuple[str, ...] = ()
    stands_alone: bool = True
    has_init_inputs: bool = False
    plain_inputs: bool = True
    plain_init: bool = True
    own_inputs: bool = False
    script: str = ""
    function: str = "get_inputs"
    script_has_init_inputs: bool = False


def groundtruth_text(origin: Origin, edits: Sequence[Edit] = (), script_edits: Sequence[Edit] = ()) -> str:
    """Text that defines Model, get_inputs and get_init_inputs, or reference and get_inputs."""
    target = "Model" if origin.kind == "module" else "reference"
    if origin.stands_alone and not origin.script:
        text = apply_edits(origin.text, edits).rstrip("\n") + "\n"
        added = _names("", target, origin)
        return text if not added else f"{text}\n\n# Added by hiera: the names that a contract folder uses.\n{added}"
    # A lone get_init_inputs belongs to whichever file defines it.
    lines = [
        _LOADER.format(file=origin.file, entries=list(origin.entries)),
        f"_reference = _load({origin.file!r}, {origin.module_name!r}, {list(edits)!r})",
    ]
    if origin.script:
        lines.append(f"_inputs = _load({origin.script!r}, '', {list(script_edits)!r})")
    return "\n".join(lines) + "\n" + _names("_reference.", target, origin)


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The text with every edit made. Edits must not overlap."""
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _names(prefix: str, target: str, origin: Origin) -> str:
    lines = []
    if prefix or origin.qualified != target:
        lines.append(f"{target} = {prefix}{origin.qualified}")
    inputs = "get_inputs"
    if origin.script:
        inputs = f"_inputs.{origin.function}"
    elif origin.own_inputs:
        inputs = f"{prefix}{origin.qualified}.get_inputs"
    elif prefix:
        inputs = f"{prefix}get_inputs"
    if not origin.plain_inputs:
        lines.append(_WRAP.format(inputs=inputs, target=target, bound="None, " if target == "Model" else "",
                                  first=1 if target == "Model" else 0,
                                  forward="Model.forward" if target == "Model" else "reference"))
    elif inputs != "get_inputs":
        lines.append(f"get_inputs = {inputs}")
    if origin.kind == "module":
        init = f"{prefix}get_init_inputs" if origin.has_init_inputs else ""
        if origin.script and origin.script_has_init_inputs:
            init = "_inputs.get_init_inputs"
        if not init:
            lines.append("\n\ndef get_init_inputs():\n    return []")
        elif not origin.plain_init:
            lines.append(_WRAP_INIT.format(init=init))
        elif init != "get_init_inputs":
            lines.append(f"get_init_inputs = {init}")
    return "\n".join(lines) + "\n" if lines else ""


_LOADER = '''"""The reference, loaded from the project it belongs to: {file}."""

import importlib
import importlib.util
import sys
from pathlib import Path

for _entry in reversed({entries!r}):
    if _entry not in sys.path:
        sys.path.insert(0, _entry)


def _load(path, name, edits):
    """Import the file at `path` with some of its text replaced (the sizes of a reduced contract)."""
    if "." in name:
        importlib.import_module(name.rpartition(".")[0])
    name = name or "_user_" + Path(path).stem
    text = Path(path).read_text(encoding="utf-8-sig")
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    sys.modules[name] = module
    exec(compile(text, path, "exec"), module.__dict__)
    return module

'''
_WRAP = '''
_given_inputs = {inputs}


def get_inputs():
    """The first example, with one value for each argument."""
    import inspect

    value = _given_inputs()
    names = set(inspect.signature({forward}).parameters)
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, dict) and v and set(v) <= names for v in value):
        value = value[0]
    args, kwargs = (value, {{}}) if isinstance(value, (list, tuple)) else ([value], {{}})
    if isinstance(value, dict):
        args, kwargs = [], value
    return list(inspect.signature({forward}).bind({bound}*args, **kwargs).args[{first}:])
'''
_WRAP_INIT = '''
_given_init_inputs = {init}


def get_init_inputs():
    """The constructor's arguments in order."""
    import inspect

    value = _given_init_inputs()
    args, kwargs = (value, {{}}) if isinstance(value, (list, tuple)) else ([value], {{}})
    if isinstance(value, dict):
        args, kwargs = [], value
    elif len(args) == 2 and isinstance(args[0], (list, tuple)) and isinstance(args[1], dict):
        args, kwargs = args
    bound = inspect.signature(Model).bind(*args, **kwargs)
    bound.apply_defaults()
    return list(bound.args)
'''
