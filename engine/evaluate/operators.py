"""Operator declarations, cut out of the installed torch's headers down to what one source names.

torch's generated headers state every operator as a struct with a static `call` that libtorch_cpu exports, and as thin
inline functions and methods over it. Reading them takes a second, parsing them as C++ a minute. So we read them once
per torch (`load_index`), and write for each source only the declarations whose names occur in it (`write_headers`).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from contracts.errors import ToolError

FORMAT = 3
# Types that the light headers do not have. Overloads with them are left out.
_UNSUPPORTED = re.compile(
    r"Dimname|Storage|Quantizer|QScheme|Stream\b|ITensorListRef|IListRef|c10::List|ArrayRef<at::Scalar>|SymFloat|"
    r"SymBool|DispatchKeySet|TensorBase|c10::Dict|IValue|List<"
)
_FUNCTION = re.compile(
    r"^inline (?P<result>[^\n(]*?)(?P<name>[A-Za-z_]\w*)\((?P<arguments>[^\n]*)\) \{\n(?P<body>[^\n]*)\n\}", re.M
)
_METHOD = re.compile(
    r"^inline (?P<result>[^\n(]*?)Tensor::(?P<name>\w+)\((?P<arguments>[^\n]*)\) (?:const )?\{\n[^\n]*\n\}", re.M
)
_METHOD_DECLARATION = re.compile(r"^  (?P<result>[\w:&<>, ]*?) ?(?P<name>\w+)\([^\n]*\) (?:const)?;", re.M)
_STRUCT = re.compile(r"^struct TORCH_API (?P<name>\w+) \{.*?^  static (?P<call>[^\n]*? call\([^\n]*\));", re.M | re.S)
_USED_STRUCT = re.compile(r"at::_ops::(\w+)::call")
_OTHER_HEADERS = re.compile(r"_(?:native|cpu|cuda|meta|composite\w*|\w+_dispatch)\.h$")

# What needs the 16-bit types, whose headers cost a fifth of a small candidate's build: their names, and dispatch over
# further types (in capitals only: sources say `expand(`).
_HALVES = re.compile(r"(?i:half|bfloat16)|AND[23]?\(|DISPATCH_\w*REDUCED_")

# Standard headers that torch's own bring in and sources lean on without including them.
_STANDARD_HEADERS = tuple(
    (header, re.compile(pattern))
    for header, pattern in (
        ("string", r"std::(string\b|to_string|getline)|c10::str\b"),
        ("stdexcept", r"std::\w*(error|exception)\b|std::(invalid_argument|out_of_range)"),
        ("cfloat", r"\b(FLT|DBL)_"),
        ("climits", r"\b(U?INT|U?LL?ONG|CHAR|SHRT)_(MAX|MIN)"),
        ("algorithm", r"std::(min|max|sort|fill|copy|clamp|reverse|swap|transform|any_of|all_of)\b"),
        ("memory", r"std::(unique_ptr|shared_ptr|make_)"),
        ("functional", r"std::(function|hash|plus|multiplies)"),
        ("numeric", r"std::(accumulate|iota|gcd)"),
        ("iostream", r"std::(cout|cerr|endl)"),
        ("sstream", r"std::\w*stringstream"),
        ("mutex", r"std::(mutex|lock_guard|unique_lock|once_flag|call_once)"),
        ("unordered_map", r"std::unordered_map"),
        ("unordered_set", r"std::unordered_set"),
        ("map", r"std::map"),
        ("set", r"std::set\b"),
        ("cassert", r"\bassert\s*\("),
        ("cstdio", r"\bf?printf\s*\("),
        ("cstdlib", r"\b(malloc|abort|getenv|exit)\s*\("),
        ("atomic", r"std::atomic"),
        ("thread", r"std::thread"),
    )
)
_HANDLE_HEADERS = {
    "cublasHandle_t": "cublas_v2.h", "cublasLtHandle_t": "cublasLt.h", "cudnnHandle_t": "cudnn.h",
    "cusparseHandle_t": "cusparse.h", "cusolverDnHandle_t": "cusolverDn.h",
}
# Methods that hiera_mini/tensor.h defines itself.
_OWN_METHODS = frozenset(
    re.findall(
        r"\w+",
        """contiguous size stride data is_cuda is_contiguous sizes strides dim numel options dtype device layout
        scalar_type storage_offset requires_grad is_floating_point element_size is_leaf output_nr itemsize nbytes
        get_device reset is_same use_count is_cpu is_meta is_sparse is_non_overlapping_and_dense defined type accessor
        cpu cuda""",
    )
)


@dataclass(frozen=True, slots=True)
class OperatorIndex:
    """The operators of one torch.

    Attributes:
        functions: Name to definitions of the inline functions in namespace at.
        structs: Name in `at::_ops` to the declaration of its static `call`.
        methods: Name to (declaration, definition) pairs of Tensor's methods.
        handles: Name of a function that gives torch's handle of an NVIDIA library, to its declaration.
    """

    functions: Mapping[str, list[str]]
    structs: Mapping[str, str]
    methods: Mapping[str, list[list[str]]]
    handles: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Headers:
    """The two files that `hiera_mini/all.h` includes.

    Attributes:
        declarations: hiera_ops_decl.h, before the light headers.
        definitions: hiera_ops.h, after them.
    """

    declarations: str
    definitions: str


def read_index(include: Path) -> OperatorIndex:
    """Read the operator headers below torch's `include` folder. Takes about a second.

    Raises:
        ToolError: The folder has no operator headers.
    """
    functions: dict[str, list[str]] = {}
    structs: dict[str, str] = {}
    try:
        paths = sorted((include / "ATen" / "ops").iterdir())
        tensor_body = (include / "ATen" / "core" / "TensorBody.h").read_text()
    except OSError as error:
        raise ToolError(
            f"torch's C++ headers cannot be read: {error}",
            hint="install torch again: its include folder comes with the wheel", file=include,
        ) from None
    for path in paths:
        if path.name.endswith("_ops.h"):
            for match in _STRUCT.finditer(path.read_text()):
                if not _UNSUPPORTED.search(match["call"]):
                    structs[match["name"]] = match["call"]
        elif path.suffix == ".h" and not _OTHER_HEADERS.search(path.name):
            text = re.sub(r"^namespace symint \{.*?^\}\n", "", path.read_text(), flags=re.M | re.S)
            for match in _FUNCTION.finditer(text):
                supported = not _UNSUPPORTED.search(match["result"] + match["arguments"])
                if supported and not match["name"].startswith("__dispatch"):
                    functions.setdefault(match["name"], []).append(match[0])
    return OperatorIndex(functions, structs, _read_methods(tensor_body), _read_handles(include))


def _read_handles(include: Path) -> dict[str, str]:
    """`at::cuda::getCurrentCUDABlasHandle` and its like, with the headers of the types that they give."""
    found: dict[str, str] = {}
    for path, namespace in (("ATen/cuda/CUDAContextLight.h", "at::cuda"), ("ATen/cudnn/Handle.h", "at::native")):
        try:
            text = (include / path).read_text()
        except OSError:
            continue
        for match in re.finditer(r"^TORCH_CUDA_CPP_API (?P<type>cu\w+Handle_t) (?P<name>\w+)\([^)]*\);", text, re.M):
            header = _HANDLE_HEADERS.get(match["type"])
            if header:
                declaration = match[0].removeprefix("TORCH_CUDA_CPP_API ")
                found[match["name"]] = f"#include <{header}>\nnamespace {namespace} {{ {declaration} }}\n"
    return found


def _read_methods(tensor_body: str) -> dict[str, list[list[str]]]:
    declarations: dict[str, list[str]] = {}
    for match in _METHOD_DECLARATION.finditer(tensor_body):
        if match["result"].strip() != "T":
            declarations.setdefault(match["name"], []).append(match[0].strip())
    definitions: dict[str, list[str]] = {}
    for match in _METHOD.finditer(tensor_body):
        definitions.setdefault(match["name"], []).append(match[0])
    methods: dict[str, list[list[str]]] = {}
    for name, bodies in definitions.items():
        # Overloads are declared and defined in the same order.
        for body, declaration in zip(bodies, declarations.get(name, []), strict=False):
            if not _UNSUPPORTED.search(declaration):
                methods.setdefault(name, []).append([declaration, body])
    return methods


def load_index(include: Path, cache: Path) -> OperatorIndex:
    """The index of torch's `include` folder, from `cache` (a JSON file) when it fits, else read and cached there.

    The caller names `cache` by torch's version. A damaged file is read anew.
    """
    try:
        data = json.loads(cache.read_text())
        if data["format"] == FORMAT:
            return OperatorIndex(data["functions"], data["structs"], data["methods"], data["handles"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    index = read_index(include)
    text = json.dumps({"format": FORMAT, **asdict(index)})
    cache.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=cache.parent, prefix=cache.name + ".")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).replace(cache)
    return index


def headers(index: OperatorIndex, source: str) -> Headers:
    """The declarations that `source` needs."""
    writer = _Writer(index)
    words = set(re.findall(r"[A-Za-z_]\w*", source))
    called = set(re.findall(r"(?<![.>\w])\s*([A-Za-z_]\w*)\s*\(", source)) | set(
        re.findall(r"::\s*([A-Za-z_]\w*)\s*\(", source)
    )
    methods = set(re.findall(r"(?:\.|->)\s*(?:template\s+)?([A-Za-z_]\w*)\s*[(<]", source)) & index.methods.keys()
    methods -= _OWN_METHODS
    methods |= {"item"} & index.methods.keys()
    if words & {"cuda", "cpu"}:
        methods.add("to")
    for name in sorted(methods):
        writer.add_method(name)
    for name in sorted(called & index.functions.keys()):
        writer.add_function(name)
    writer.add_structs(source)
    if re.search(r"\b(?:at|torch)::", source):
        writer.add_arithmetic()
        if "cat" in words or "concat" in words:
            writer.add_cat()
    writer.add_subscript()
    if "_version" in words:
        writer.add_version()
    return writer.finish(source)


def write_headers(index: OperatorIndex, source: str, directory: Path) -> None:
    """Write `headers(index, source)` into `directory`, to go on the include path before the light headers.

    `#include <ATen/ops/NAME.h>` in the source is served there too.
    """
    made = headers(index, source)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "hiera_ops_decl.h").write_text(made.declarations)
    (directory / "hiera_ops.h").write_text(made.definitions)
    for name in set(re.findall(r"#\s*include\s*[<\"]ATen/ops/(\w+)\.h[>\"]", source)):
        shadow = directory / "ATen" / "ops" / f"{name}.h"
        if name in index.functions or name in index.methods:
            shadow.parent.mkdir(parents=True, exist_ok=True)
            shadow.write_text("#include <hiera_mini/all.h>\n")


class _Writer:
    """Collects declarations and the `at::_ops` structs that they rest on."""

    def __init__(self, index: OperatorIndex) -> None:
        self._index = index
        self._structs: dict[str, str] = {}
        self._method_declarations: list[str] = []
        self._definitions: list[str] = []

    def _resolve(self, text: str) -> bool:
        """Note the structs that `text` uses; False when one of them is not supported."""
        used = _USED_STRUCT.findall(text)
        if not used or any(name not in self._index.structs for name in used):
            return False
        self._structs.update((name, self._index.structs[name]) for name in used)
        return True

    def add_method(self, name: str) -> None:
        added = False
        for declaration, definition in self._index.methods.get(name, ()):
            if self._resolve(definition):
                self._method_declarations.append(declaration)
                self._definitions.append(definition)
                added = True
        if name == "to" and added:
            for device in ("cuda", "cpu"):
                self._method_declarations.append(
                    f"Tensor {device}() const {{ "
                    f"return to(options().device(DeviceType::{device.upper()}), false, false); }}"
                )

    def add_structs(self, source: str) -> None:
        """Overloads that the source calls by their exact name, `at::_ops::NAME::call`."""
        named = set(_USED_STRUCT.findall(source)) & self._index.structs.keys()
        self._structs.update((name, self._index.structs[name]) for name in named)

    def add_function(self, name: str) -> None:
        self._definitions += [text for text in self._index.functions[name] if self._resolve(text)]

    def add_text(self, text: str) -> None:
        if self._resolve(text):
            self._definitions.append(text)

    def add_arithmetic(self) -> None:
        """Operators between tensors and scalars."""
        for operator, name in (("+", "add"), ("-", "sub"), ("*", "mul"), ("/", "div")):
            alpha = ", 1" if operator in "+-" else ""
            for kind in ("Tensor", "Scalar"):
                self.add_text(
                    f"inline Tensor operator{operator}(const Tensor& a, const {kind}& b) "
                    f"{{ return at::_ops::{name}_{kind}::call(a, b{alpha}); }}"
                )
                self.add_text(
                    f"inline Tensor& operator{operator}=(Tensor& a, const {kind}& b) "
                    f"{{ at::_ops::{name}__{kind}::call(a, b{alpha}); return a; }}"
                )
        for operator, call in (
            ("+", "at::_ops::add_Scalar::call(b, a, 1)"),
            ("*", "at::_ops::mul_Scalar::call(b, a)"),
            ("-", "at::_ops::rsub_Scalar::call(b, a, 1)"),
            ("/", "at::_ops::mul_Scalar::call(at::_ops::reciprocal::call(b), a)"),
        ):
            self.add_text(f"inline Tensor operator{operator}(const Scalar& a, const Tensor& b) {{ return {call}; }}")
        self.add_text("inline Tensor operator-(const Tensor& a) { return at::_ops::neg::call(a); }")
        self.add_text("inline Tensor operator~(const Tensor& a) { return at::_ops::bitwise_not::call(a); }")
        for operator, name in (
            ("<", "lt"), (">", "gt"), ("<=", "le"), (">=", "ge"), ("==", "eq"), ("!=", "ne"), ("%", "remainder"),
            ("&", "bitwise_and"), ("|", "bitwise_or"), ("^", "bitwise_xor"),
        ):
            for kind in ("Tensor", "Scalar"):
                self.add_text(
                    f"inline Tensor operator{operator}(const Tensor& a, const {kind}& b) "
                    f"{{ return at::_ops::{name}_{kind}::call(a, b); }}"
                )

    def add_subscript(self) -> None:
        self._add_written_method("Tensor", "operator[](int64_t i) const", "at::_ops::select_int::call(*this, 0, i)")

    def add_version(self) -> None:
        """`_version`, which torch declares in TensorBase, not among the methods that it generates."""
        self._add_written_method("int64_t", "_version() const", "at::_ops::_version::call(*this)")

    def _add_written_method(self, result: str, head: str, value: str) -> None:
        text = f"inline {result} Tensor::{head} {{ return {value}; }}"
        if self._resolve(text):
            self._method_declarations.append(f"{result} {head};")
            self._definitions.append(text)

    def add_cat(self) -> None:
        """`cat` takes an ITensorListRef, which stays behind a C function of the runtime library."""
        overloads = (
            ("TensorList t", "Tensor r; hm_cat(t.data(), t.size(), dim, &r); return r;"),
            ("const std::vector<Tensor>& t", "return NAME(TensorList(t), dim);"),
            ("std::initializer_list<Tensor> t", "return NAME(TensorList(t), dim);"),
        )
        for name in ("cat", "concat"):
            for parameter, body in overloads:
                text = f"inline Tensor {name}({parameter}, int64_t dim = 0) {{ {body.replace('NAME', name)} }}"
                self._definitions.append(text)

    def finish(self, source: str) -> Headers:
        standard = [header for header, pattern in _STANDARD_HEADERS if pattern.search(source)]
        lines = ["#pragma once", *(f"#include <{header}>" for header in standard)]
        if "string" in standard or "<string>" in source:
            lines += ["#include <string>", "#define HIERA_MINI_STRING 1"]
        if _HALVES.search(source):
            lines.append("#define HIERA_MINI_HALF 1")
        lines.append("#define HM_METHOD_DECLS " + " ".join(self._method_declarations))
        structs = "".join(f"struct {name} {{ static {call}; }};\n" for name, call in sorted(self._structs.items()))
        definitions = "\n".join(self._definitions)
        handles = "".join(text for name, text in self._index.handles.items() if re.search(rf"\b{name}\b", source))
        return Headers(
            "\n".join(lines) + "\n",
            "#pragma once\nnamespace at {\nnamespace _ops {\n" + structs + "}\n" + definitions + "\n}\n" + handles,
        )
