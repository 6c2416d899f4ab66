"""Whole generated programs on the CPU: module → graph → contract → source → emulated extension, compared with eager."""

from __future__ import annotations

import asyncio
import copy
import importlib.machinery
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from contracts.contract import Argument, Contract, Variant
from contracts.cuda_adaptor import host_signature, returns_of
from contracts.graph import Graph, Ref
from engine.codegen import Program, Recipe, write
from engine.evaluate.build import Builder
from engine.evaluate.emulate import build_emulated
from engine.records import Build
from engine.toolchain import find_toolchain
from tests.codegen_harness import H200, export_graph

torch.set_num_threads(1)


def variant_of(graph: Graph, name: str = "example") -> Variant:
    outputs = tuple(graph.values[o.name] for o in graph.outputs if isinstance(o, Ref))
    return Variant(name=name, tensors={n: graph.values[n] for n in graph.inputs}, outputs=outputs, graph=graph)


def contract_of(graph: Graph, states: int, mode: str = "eval", flags=None) -> Contract:
    """A contract whose arguments are the graph's inputs: state first, then forward's inputs."""
    arguments = tuple(
        Argument(name=name, role="buffer" if i < states else "input", tensor=graph.values[name], path=name,
                 mutable=name in graph.mutations)
        for i, name in enumerate(graph.inputs)
    )
    return Contract(name="Net", entry="net_forward", arguments=arguments, output_tree=0,
                    variants=(variant_of(graph),), mode=mode, flags=flags or {})


def program_of(module, inputs, *, space="cuda_libs_torch", choices=None) -> tuple[Program, Contract, list[torch.Tensor]]:
    graph, state, _ = export_graph(module, inputs)
    contract = contract_of(graph, len(state), "train" if getattr(module, "training", False) else "eval")
    return write(contract, Recipe(space=space, choices=choices or {}), H200), contract, state


class Lab:
    """Builds programs over one cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.toolchain = asyncio.run(find_toolchain(sys.executable))

    def load(self, contract: Contract, source: str):
        """The compiled host function."""
        folder = self.root / f"contract-{contract.id}"
        folder.mkdir(exist_ok=True)
        declaration = host_signature(contract.entry, contract.arguments, returns_of(len(contract.outputs)))
        (folder / "cpp_source.cpp").write_text(declaration + ";\n")
        build = asyncio.run(build_emulated(Builder(self.toolchain, self.root / "cache"), folder, source))
        assert isinstance(build, Build), f"{build}\n{source}"
        name = f"hiera_{contract.id}_{abs(hash(source))}.{build.module}"
        loader = importlib.machinery.ExtensionFileLoader(name, build.extension)
        spec = importlib.machinery.ModuleSpec(name, loader, origin=build.extension)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return next(v for k, v in vars(module).items() if not k.startswith("_"))

    def check(self, module, inputs, *, space="cuda_libs_torch", choices=None, tolerance=2e-5) -> Program:
        """The program agrees with eager in values, dtypes, strides, state updates and aliasing."""
        module = module if isinstance(module, torch.nn.Module) else _Function(module)
        exported = copy.deepcopy(module)
        program, contract, state = program_of(exported, inputs, space=space, choices=choices)
        function = self.load(contract, program.source)
        arguments = [*(t.detach().clone() for t in state), *(t.clone() for t in inputs)]
        with torch.no_grad():
            torch.manual_seed(3)
            want = _flat(module(*(t.clone() for t in inputs)))
            torch.manual_seed(3)
            got = _flat(function(*arguments))
        assert len(got) == len(want)
        held = {t.untyped_storage().data_ptr() for t in arguments}
        for a, b in zip(got, want, strict=True):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
            assert a.untyped_storage().data_ptr() not in held or not a.numel()
        final = {**dict(module.named_buffers())}
        written = [a for a, argument in zip(arguments, contract.arguments, strict=True) if argument.mutable]
        changed = [final[p] for p in _mutated_paths(exported, inputs)] if written else []
        for a, b in zip(written, changed, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        return program


def two_sizes(module, first, second) -> Contract:
    """A contract that serves two shapes."""
    graph, state, _ = export_graph(module, first)
    other, _, _ = export_graph(module, second)
    contract = contract_of(graph, len(state))
    return replace(contract, variants=(variant_of(graph), variant_of(other, "batch 1")))


class _Function(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, *inputs):
        return self.function(*inputs)


def _mutated_paths(module, inputs) -> list[str]:
    program = torch.export.export(module, tuple(inputs), strict=False).run_decompositions({})
    targets = set(program.graph_signature.buffers_to_mutate.values())
    return [path for path in program.graph_signature.inputs_to_buffers.values() if path in targets]


def _flat(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return [tensor for item in items for tensor in _flat(item)]


class Product(nn.Module):
    """`a @ b` of operands that lie as told."""

    def __init__(self, a_turned=False, b_turned=False):
        super().__init__()
        self.a_turned, self.b_turned = a_turned, b_turned

    def forward(self, a, b):
        return (a.mT if self.a_turned else a) @ (b.mT if self.b_turned else b)
