"""The space of a kernel that the user wrote: the narrowest that holds what its text uses."""

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


def space_of(source: str) -> Space:
    """The space to claim. Only a claim: the build enforces it by what the object links and launches."""
    text = _COMMENT.sub(" ", source)
    if _OPERATOR.search(text):
        return "cuda_libs_torch"
    return "cuda_libs" if _LIBRARY.search(text) else "cuda"
