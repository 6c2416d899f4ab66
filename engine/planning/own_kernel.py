"""What the text of a source tells without building it: the space it needs, the launches it makes."""

from __future__ import annotations

import re

from contracts.contract import Space

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LIBRARY = re.compile(r"\b(cublas|cudnn|cutlass|cute|cusparse|cufft|cusolver|curand|thrust|cub)(?=\w*[(:.<]|\w*\.h)",
                      re.IGNORECASE)
# What allocates or describes is allowed in every space; every other call of these namespaces computes.
_HARMLESS = (r"Tensor\w*|empty\w*|IntArrayRef|ScalarType|Device\w*|k[A-Z]\w*|cuda|detail|dtype|Half|BFloat16"
             r"|MemoryFormat|OptionalTensorRef")
_OPERATOR = re.compile(rf"\b(?:at|torch)::(?!(?:{_HARMLESS})\b)\w+\s*\(")
_LIBRARY_CALL = re.compile(r"\bcu(?:blas|dnn)\w*(?:gemm|Gemm|Matmul|Convolution|convolution)\w*\s*\(")
# The last is what our own code generation calls for kernels whose blocks run in clusters.
_LAUNCH = re.compile(r"<<<|\bcudaLaunchKernel\w*\s*\(|\blaunch_cluster\(")
_FUNCTION = re.compile(r"^[\w:<>,&* ]*?\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)


def space_of(source: str) -> Space:
    """The space to claim. Only a claim: the build enforces it by what the object links and launches."""
    text = _COMMENT.sub(" ", source)
    if _OPERATOR.search(text):
        return "cuda_libs_torch"
    return "cuda_libs" if _LIBRARY.search(text) else "cuda"


def launches_of(source: str, entry: str) -> int:
    """Kernel launches and ATen calls in the text of the function `entry` and of those it is written with.

    Rough: helpers for rare cases (copies of unusual strides) stand above and are not counted; a call in a
    loop counts once.
    """
    text = _COMMENT.sub(" ", source)
    bodies = [body for name, body in _functions(text) if name in (entry, f"{entry.removesuffix('_forward')}_variant")]
    counted = "\n".join(bodies) or text
    return max(1, len(_LAUNCH.findall(counted)) + len(_OPERATOR.findall(counted)) + len(_LIBRARY_CALL.findall(counted)))


def _functions(text: str) -> list[tuple[str, str]]:
    """Name and body of every function that begins a line, by counting braces."""
    found = []
    for match in _FUNCTION.finditer(text):
        depth, end = 0, match.end() - 1
        for end in range(match.end() - 1, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                break
        found.append((match[1], text[match.end():end]))
    return found
