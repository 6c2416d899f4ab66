"""What a CUDA source file defines: kernels, host functions and launches, found in its text by tree-sitter.

The text may be incomplete: a parse never fails, it finds what is whole.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import tree_sitter
import tree_sitter_cuda

from contracts.spans import Span

Kind = Literal["kernel", "host", "launcher"]
TENSOR_TYPES = frozenset({"torch::Tensor", "at::Tensor", "Tensor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaParameter:
    """One parameter of a function.

    Attributes:
        type: Type without qualifiers, pointers and references, such as `float` or `torch::Tensor`.
        name: Its name, or empty.
        pointer: True for `T*`.
        const: True when the pointee (or value) is const.
    """

    type: str
    name: str
    pointer: bool = False
    const: bool = False

    @property
    def is_tensor(self) -> bool:
        """True for torch tensors by value or reference."""
        return self.type in TENSOR_TYPES and not self.pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One `kernel<<<grid, block, ...>>>(...)`."""

    kernel: str
    function: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFunction:
    """One function definition.

    Attributes:
        name: Unqualified name.
        kind: `kernel` for __global__, `launcher` for extern "C" host functions, else `host`.
        returns: Return type as written, without `__global__` and the like.
        parameters: In order.
        template: True for function templates.
        name_span: The name in the text.
        span: The whole definition, template head and linkage included.
    """

    name: str
    kind: Kind
    returns: str
    parameters: tuple[CudaParameter, ...]
    template: bool
    name_span: Span
    span: Span

    @property
    def takes_tensors(self) -> bool:
        """True when a parameter is a torch tensor."""
        return any(parameter.is_tensor for parameter in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFile:
    """What one text defines, in order."""

    functions: tuple[CudaFunction, ...]
    launches: tuple[Launch, ...]
    has_binding: bool

    def named(self, name: str) -> CudaFunction | None:
        """The first function called `name`."""
        return next((f for f in self.functions if f.name == name), None)

    @property
    def kernels(self) -> tuple[CudaFunction, ...]:
        """All __global__ functions."""
        return tuple(f for f in self.functions if f.kind == "kernel")


class Earlier:
    """The last text of a document and its tree: the next text is parsed in the time that its change takes."""

    def __init__(self) -> None:
        self._data, self._tree = b"", None

    def parse(self, data: bytes) -> tree_sitter.Tree:
        """The tree of `data`."""
        if self._tree is not None:
            start, before, after = _difference(self._data, data)
            self._tree.edit(
                start_byte=start, old_end_byte=before, new_end_byte=after, start_point=_point(data, start),
                old_end_point=_point(self._data, before), new_end_point=_point(data, after),
            )
        self._tree = _parser().parse(data, self._tree) if self._tree is not None else _parser().parse(data)
        self._data = data
        return self._tree


def parse_cuda(text: str, earlier: Earlier | None = None) -> CudaFile:
    """Find functions, launches and a PyTorch binding in `text`.

    Args:
        text: The source, which may be incomplete.
        earlier: What is remembered of the document whose text this is, for editors; updated.
    """
    reader = _Reader(text)
    root = (_parser().parse(reader.data) if earlier is None else earlier.parse(reader.data)).root_node
    # A query finds the few nodes that matter in C; walking the whole tree from here costs three times the parse.
    found = tree_sitter.QueryCursor(_query()).captures(root)
    functions = tuple(reader.functions(_in_order(found.get("function", []))))
    launches = tuple(reader.launches(_in_order(found.get("launch", [])), functions))
    return CudaFile(
        functions=functions,
        launches=launches,
        has_binding="PYBIND11_MODULE" in text or "TORCH_LIBRARY" in text,
    )


def _difference(old: bytes, new: bytes) -> tuple[int, int, int]:
    """Where two texts begin to differ, and where in each of them the difference ends."""
    shorter = min(len(old), len(new))
    start = _shared(shorter, lambda n: old[:n] == new[:n])
    end = _shared(shorter - start, lambda n: old[len(old) - n :] == new[len(new) - n :])
    return start, len(old) - end, len(new) - end


def _shared(limit: int, same: Callable[[int], bool]) -> int:
    """The largest number up to `limit` for which `same` holds, as it does for all below it."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if same(middle) else (low, middle - 1)
    return low


def _point(data: bytes, offset: int) -> tuple[int, int]:
    return data.count(b"\n", 0, offset), offset - data.rfind(b"\n", 0, offset) - 1


def defined_names(text: str) -> set[str]:
    """Names of functions, types and macros that `text` defines, wherever they stand."""
    data = text.encode("utf-8", "surrogatepass")
    found = tree_sitter.QueryCursor(_names()).captures(_parser().parse(data).root_node)
    nodes = [node for captured in found.values() for node in captured]
    return {data[node.start_byte : node.end_byte].decode("utf-8", "replace") for node in nodes}


@cache
def _language() -> tree_sitter.Language:
    return tree_sitter.Language(tree_sitter_cuda.language())


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(_language())


@cache
def _query() -> tree_sitter.Query:
    return tree_sitter.Query(
        _language(), "(function_definition) @function (call_expression (kernel_call_syntax)) @launch"
    )


@cache
def _names() -> tree_sitter.Query:
    return tree_sitter.Query(
        _language(),
        "(function_declarator declarator: (identifier) @name)"
        "(struct_specifier name: (type_identifier) @name body: (_))"
        "(class_specifier name: (type_identifier) @name body: (_)) (alias_declaration name: (type_identifier) @name)"
        "(preproc_def name: (identifier) @name) (preproc_function_def name: (identifier) @name)",
    )


def _in_order(nodes: list[tree_sitter.Node]) -> list[tree_sitter.Node]:
    return sorted(nodes, key=lambda node: node.start_byte)


class _Reader:
    """Turns tree-sitter's nodes, which count bytes, into our records, which count characters."""

    def __init__(self, text: str) -> None:
        self.data = text.encode("utf-8", "surrogatepass")
        self.lines = self.data.split(b"\n")

    def text(self, node: tree_sitter.Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def span(self, node: tree_sitter.Node) -> Span:
        (start_line, start), (end_line, end) = node.start_point, node.end_point
        return Span(
            start_line=start_line,
            start_column=self._column(start_line, start),
            end_line=end_line,
            end_column=self._column(end_line, end),
        )

    def functions(self, nodes: list[tree_sitter.Node]) -> Iterator[CudaFunction]:
        for node in nodes:
            if not _is_inside(node, {"compound_statement", "field_declaration_list"}):
                found = self._function(node)
                if found is not None:
                    yield found

    def launches(self, nodes: list[tree_sitter.Node], functions: tuple[CudaFunction, ...]) -> Iterator[Launch]:
        starts = sorted((f.span.start_line, number) for number, f in enumerate(functions))
        for node in nodes:
            callee = node.child_by_field_name("function")
            span = self.span(node)
            before = bisect.bisect_right(starts, (span.start_line, len(functions)))
            last = functions[starts[before - 1][1]] if before else None
            inside = last.name if last is not None and span.start_line <= last.span.end_line else ""
            name = self.text(callee).split("<")[0].split("::")[-1].strip() if callee else ""
            yield Launch(kernel=name, function=inside, span=span)

    def _function(self, node: tree_sitter.Node) -> CudaFunction | None:
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type in ("pointer_declarator", "reference_declarator"):
            declarator = declarator.child_by_field_name("declarator") or (declarator.children or [None])[-1]
        if declarator is None or declarator.type != "function_declarator":
            return None
        name_node = declarator.child_by_field_name("declarator")
        parameters = declarator.child_by_field_name("parameters")
        if name_node is None or parameters is None or name_node.type not in (
            "identifier", "qualified_identifier", "field_identifier"
        ):
            return None
        head = self.data[node.start_byte : name_node.start_byte].decode("utf-8", "replace")
        whole, external, template = node, False, False
        while whole.parent is not None and whole.parent.type in (
            "template_declaration", "linkage_specification", "declaration_list"
        ):
            if whole.parent.type == "declaration_list":
                external |= whole.parent.parent is not None and whole.parent.parent.type == "linkage_specification"
                break
            template |= whole.parent.type == "template_declaration"
            external |= whole.parent.type == "linkage_specification"
            whole = whole.parent
        device_only = "__device__" in head and "__global__" not in head and "__host__" not in head
        if device_only or self.text(name_node) == "PYBIND11_MODULE":
            return None
        kind: Kind = "kernel" if "__global__" in head else "launcher" if external else "host"
        returns = node.child_by_field_name("type")
        return CudaFunction(
            name=self.text(name_node).split("::")[-1],
            kind=kind,
            returns=self.text(returns) if returns is not None else "",
            parameters=tuple(
                self._parameter(child)
                for child in parameters.named_children
                if child.type in ("parameter_declaration", "optional_parameter_declaration")
                and self.text(child) != "void"
            ),
            template=template,
            name_span=self.span(name_node),
            span=self.span(whole),
        )

    def _parameter(self, node: tree_sitter.Node) -> CudaParameter:
        kind = node.child_by_field_name("type")
        inner = node.child_by_field_name("declarator")
        pointer = False
        name = ""
        while inner is not None:
            pointer |= inner.type in ("pointer_declarator", "abstract_pointer_declarator", "array_declarator")
            if inner.type in ("identifier", "field_identifier"):
                name = self.text(inner)
                break
            inner = inner.child_by_field_name("declarator") or (inner.named_children or [None])[-1]
        head = self.text(node).split("*")[0]
        return CudaParameter(
            type=" ".join(self.text(kind).split()) if kind is not None else "",
            name=name,
            pointer=pointer,
            const="const" in head.split(),
        )

    def _column(self, line: int, byte_column: int) -> int:
        return len(self.lines[line][:byte_column].decode("utf-8", "replace"))


def _is_inside(node: tree_sitter.Node, kinds: set[str]) -> bool:
    parent = node.parent
    while parent is not None:
        if parent.type in kinds:
            return True
        parent = parent.parent
    return False
