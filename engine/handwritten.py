"""Contract folders written by hand: the order of the C++ declaration decides, the module says what each argument is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts import codec
from contracts.contract import Argument, Contract
from contracts.errors import ContractError
from contracts.folder import Declared

Facts = Sequence[Mapping[str, Any]]


def arranged(
    contract: Contract, declared: Declared, unused: tuple[Argument, ...], semantics: Facts, modules: Facts, folder: Path
) -> Contract:
    """The contract with the declaration's entry and argument order.

    Args:
        contract: As the probe found it, in our own order.
        declared: The host function.
        unused: Parameters and buffers that the call does not need but a declaration may still take.
        semantics: Entries of params_semantics.json, in order; empty without the file.
        modules: Facts about submodules, for attributes such as eps.
        folder: For messages.

    Raises:
        ContractError: The declaration and the module do not fit each other.
    """
    tensors = [p for p in declared.parameters if _is_tensor(p[0])]
    numbers = [p for p in declared.parameters if not _is_tensor(p[0])]
    told = {str(entry.get("name")): entry for entry in semantics}
    pool = [a for a in contract.arguments if a.tensor is not None]
    chosen = _match_tensors([name for _, name in tensors], told, pool, list(unused), folder)
    given = [a for a in contract.arguments if a.tensor is None]
    attributes = [_attribute(kind, name, told, given, modules, folder) for kind, name in numbers]
    arguments = (*chosen, *attributes)
    left = [a.name for a in pool if a.role == "input" and a.path not in {c.path for c in chosen}]
    if left:
        raise ContractError(
            f"the declaration of {declared.entry} has no parameter for input {', '.join(left)}",
            hint="declare one parameter for every value of get_inputs()", file=folder / "cpp_source.cpp",
        )
    return _renamed(replace(contract, entry=declared.entry), arguments, {a.path: a.name for a in pool})


def read_semantics(folder: Path) -> Facts:
    """The arguments that params_semantics.json lists, in order: a list, or a mapping from name to facts.

    Raises:
        ContractError: The file is not valid JSON, or lists no arguments in a form we know.
    """
    path = folder / "params_semantics.json"
    if not path.exists():
        return ()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ContractError(f"not valid JSON: {error}", hint="correct the file", file=path) from None
    if isinstance(data, dict):
        for key in ("arguments", "args", "params", "parameters", "inputs"):
            if key in data:
                data = data[key]
                break
    if isinstance(data, dict):
        return tuple({"name": key, **(v if isinstance(v, dict) else {"meaning": v})} for key, v in data.items())
    if isinstance(data, list):
        return tuple(entry if isinstance(entry, dict) else {"name": str(entry)} for entry in data)
    raise ContractError(
        "it lists no arguments", hint='write {"arguments": [{"name": "x", "role": "input"}, ...]}', file=path
    )


def _match_tensors(
    names: list[str], told: Mapping[str, Mapping[str, Any]], pool: list[Argument], unused: list[Argument], folder: Path
) -> list[Argument]:
    """One argument for every declared tensor: by name or path where they say it, else in order."""
    found: list[Argument | None] = []
    free = [*pool, *unused]
    for name in names:
        entry = told.get(name, {})
        argument = _by_name(name, str(entry.get("path", "")), free)
        found.append(argument)
        if argument is not None:
            free.remove(argument)
    open_places = found.count(None)
    rest = [a for a in free if a in pool]
    if open_places > len(rest):
        rest = free
    if open_places > len(rest):
        missing = ", ".join(repr(n) for n, a in zip(names, found, strict=True) if a is None)
        known = ", ".join(a.path for a in [*pool, *unused])
        raise ContractError(
            f"the declaration takes {missing}, which is neither input, parameter nor buffer of the module",
            hint=f"declare, in this order: {known}", file=folder / "cpp_source.cpp",
        )
    order = iter(rest)
    return [
        replace(a if a is not None else next(order), name=name or (a.name if a is not None else f"t{i}"))
        for i, (name, a) in enumerate(zip(names, found, strict=True))
    ]


def _by_name(name: str, path: str, free: list[Argument]) -> Argument | None:
    if path:
        return next((a for a in free if a.path == path), None)
    if not name:
        return None
    flat = name.lower().strip("_")
    for same in (
        lambda a: a.name == name,
        lambda a: a.path.replace(".", "_").lower() == flat,
    ):
        for argument in free:
            if same(argument):
                return argument
    # `weight` for `linear.weight`, where only one parameter ends so.
    ends = [a for a in free if a.role != "input" and a.path.replace(".", "_").lower().endswith(f"_{flat}")]
    return ends[0] if len(ends) == 1 else None


def _attribute(
    kind: str, name: str, told: Mapping[str, Mapping[str, Any]], given: list[Argument], modules: Facts, folder: Path
) -> Argument:
    value: Any = told.get(name, {}).get("value")
    if value is None:
        value = next((a.value for a in given if a.name == name), None)
    if value is None:
        found = {
            repr(part["attributes"][name]): part["attributes"][name] for part in modules
            if isinstance(part["attributes"].get(name), (bool, int, float))
        }
        value = next(iter(found.values())) if len(found) == 1 else None
    if value is None:
        raise ContractError(
            f"nothing says what value `{name}` has",
            hint=f'add {{"name": "{name}", "role": "attribute", "value": ...}} to params_semantics.json',
            file=folder / "params_semantics.json",
        )
    value = bool(value) if "bool" in kind else float(value) if kind in ("double", "float") else int(value)
    path = next((a.path for a in given if a.name == name), "")
    return Argument(name=name, role="attribute", value=value, path=path)


def _is_tensor(kind: str) -> bool:
    return kind.split("::")[-1].split("<")[0] in ("Tensor", "optional") or "Tensor" in kind


def _renamed(contract: Contract, arguments: tuple[Argument, ...], old: Mapping[str, str]) -> Contract:
    """The contract with these arguments, their new names carried through graph, variants and free dimensions."""
    new = {old[a.path]: a.name for a in arguments if a.tensor is not None and a.path in old}
    # A node may already have the name that an argument now gets.
    variants = []
    for variant in contract.variants:
        data = codec.to_data(variant)
        taken = {name for node in data["graph"]["nodes"] for name in (node["name"], *node["outputs"]) if name}
        names = {**{n: f"{n}_value" for n in taken & {a.name for a in arguments}}, **new}
        data = _rename(data, names)
        extra = {a.name: codec.to_data(a.tensor) for a in arguments if a.tensor is not None and a.path not in old}
        data["tensors"].update(extra)
        data["tensors"] = {a.name: data["tensors"][a.name] for a in arguments if a.tensor is not None}
        data["graph"]["values"].update(extra)
        data["graph"]["inputs"] = list(data["tensors"])
        variants.append(codec.from_data(data, type(variant)))
    free = tuple(tuple((new.get(n, n), d) for n, d in group) for group in contract.free_dims)
    return replace(contract, arguments=arguments, variants=tuple(variants), free_dims=free)


def _rename(data: Any, names: Mapping[str, str]) -> Any:
    graph = data["graph"]

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return {"ref": names.get(item["ref"], item["ref"])} if set(item) == {"ref"} else item
        return [value(part) for part in item] if isinstance(item, list) else item

    for node in graph["nodes"]:
        node["name"] = names.get(node["name"], node["name"])
        node["outputs"] = [names.get(name, name) if name else None for name in node["outputs"]]
        node["args"] = {key: value(item) for key, item in node["args"].items()}
    graph["outputs"] = [value(item) for item in graph["outputs"]]
    graph["mutations"] = {names.get(k, k): names.get(v, v) for k, v in graph["mutations"].items()}
    graph["values"] = {names.get(k, k): v for k, v in graph["values"].items()}
    data["tensors"] = {names.get(k, k): v for k, v in data["tensors"].items()}
    return data
