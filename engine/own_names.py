"""The user's own text under the name of the user's own file.

Tools know every candidate as `cuda_source.cu`. What they say of a text that the user wrote names the user's file
instead, and lines of the adaptor that follows it (`contracts/cuda_adaptor.py`) are not told as lines of that file.
"""

from __future__ import annotations

import re
from dataclasses import replace

from contracts.cuda_adaptor import MARK, without_adaptor
from engine.evaluate.messages import SOURCE_NAME
from engine.records import Evaluation

_PLACE = re.compile(rf"\b{re.escape(SOURCE_NAME)}(?::(?P<line>\d+)|\((?P<nvcc>\d+)\))?")


def lines_of(source: str) -> int | None:
    """How many lines of `source` are the user's; None where all are."""
    return without_adaptor(source).count("\n") + 1 if MARK in source else None


def named(evaluation: Evaluation, file: str, *, lines: int | None = None) -> Evaluation:
    """The evaluation with the user's file where it says `cuda_source.cu`.

    Args:
        evaluation: Of a text that the user wrote.
        file: The name that the user knows the text by.
        lines: How many lines the file has, where an adaptor follows them.
    """

    def is_added(line: int | None) -> bool:
        return lines is not None and line is not None and line > lines

    def place(found: re.Match[str]) -> str:
        line = found["line"] or found["nvcc"]
        if line is not None and is_added(int(line)):
            return f"{file}, in the code added after it to call it"
        return f"{file}{found[0][len(SOURCE_NAME):]}"

    def told(text: str) -> str:
        return _PLACE.sub(place, text)

    failure, verification = evaluation.failure, evaluation.verification
    if failure is not None:
        errors = tuple(replace(error, message=told(error.message), line=None if is_added(error.line) else error.line)
                       for error in failure.errors)
        failure = replace(failure, reason=told(failure.reason), errors=errors, log_tail=told(failure.log_tail))
    if verification is not None:
        checks = tuple(replace(check, status=told(check.status), detail=told(check.detail))
                       for check in verification.checks)
        verification = replace(verification, checks=checks)
    return replace(evaluation, failure=failure, verification=verification)
