"""What a candidate's process says, taken with care: its form is checked, its words are cleaned, nothing is believed.

From the moment a candidate is loaded its replies are hearsay: native code can find the pipe and write what it likes.
A reply of the wrong form is a finding about the candidate and never an exception in the engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import WorkerDiedError
from engine.records import Failure

TEXT = 2000
# Terminal escapes and other control characters: what a candidate prints reaches terminals, editors and models.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def plain_text(text: str) -> str:
    """`text` without terminal escapes, control and direction characters."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def brief(text: str) -> str:
    """`plain_text`, of a length that fits a report."""
    return plain_text(text)[:TEXT]


def sound(kind: str, reply: Any, request: Mapping[str, Any]) -> bool:
    """Has the reply to a request of this kind the form that our own worker gives it?"""
    try:
        return _FORMS[kind](reply, request) if kind in _FORMS else isinstance(reply, dict)
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def _load(reply: dict[str, Any], _request: Mapping[str, Any]) -> bool:
    measures = reply["lockdown"]
    return isinstance(measures, dict) and all(isinstance(state, str) for state in measures.values())


def _call(reply: dict[str, Any], _request: Mapping[str, Any]) -> bool:
    if "raised" in reply:
        return isinstance(reply["raised"], str) and isinstance(reply["error"], str)
    outputs = reply["outputs"]
    return (
        isinstance(outputs, list) and len(outputs) < 10_000 and all(map(_described, outputs))
        and _all(reply["copied"], bool) and len(reply["copied"]) <= len(outputs)
        and isinstance(reply["error"], str) and _all(reply["changed_flags"], str)
        and isinstance(reply["held"], bool) and _count(reply["new_threads"]) and isinstance(reply["exact_types"], bool)
    )


def _described(output: dict[str, Any]) -> bool:
    shape, stride = output["shape"], output["stride"]
    return (
        isinstance(output["dtype"], str) and isinstance(output["device"], str) and _all(shape, int)
        and _all(stride, int) and len(shape) == len(stride) and _all(output["aliases"], int)
        and isinstance(output["in_inputs"], bool)
    )


def _block(reply: dict[str, Any], request: Mapping[str, Any]) -> bool:
    times = reply["times_us"]
    right = _all(times, float) and len(times) == len(request["order"]) and all(0 < t < 1e12 for t in times)
    return right and isinstance(reply["error"], str)


def _plain(reply: dict[str, Any], _request: Mapping[str, Any]) -> bool:
    return isinstance(reply["issue_us"], float) and 0 <= reply["issue_us"] < 1e12 and isinstance(reply["error"], str)


def _copied(reply: dict[str, Any], _request: Mapping[str, Any]) -> bool:
    return _all(reply["copied"], bool) and isinstance(reply["error"], str)


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


_FORMS = {"load": _load, "call": _call, "block": _block, "plain": _plain, "recopy": _copied}


def wrong_outputs(reply: dict[str, Any], wanted: list[dict[str, Any]], device: str) -> str:
    """What is wrong with the outputs besides their values, or nothing."""
    given = reply["outputs"]
    if len(given) != len(wanted):
        return f"{len(given)} output tensors, the contract has {len(wanted)}"
    if not reply["exact_types"]:
        return "an output is not a plain torch.Tensor"
    for number, (have, want) in enumerate(zip(given, wanted, strict=True)):
        for key in ("dtype", "shape"):
            if have[key] != want[key]:
                return f"output {number} has {key} {have[key]}, the contract says {want[key]}"
        if have["device"] != device:
            return f"output {number} is on {have['device']}, the inputs are on {device}"
        if not _dense(have["shape"], have["stride"]) and _dense(want["shape"], want["reference_stride"]):
            return f"output {number} overlaps itself: shape {have['shape']}, stride {have['stride']}"
        if not reply["copied"][number]:
            return f"output {number} could not be read"
    return ""


def _dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """True when no two elements share memory."""
    reach = 1
    for step, size in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if step < reach:
            return False
        reach = step * (size - 1) + reach
    return True


def death(error: WorkerDiedError) -> str:
    """How a process ended, in words."""
    lines = [line for line in plain_text(error.log_tail).strip().splitlines() if line.strip()]
    status = error.exit_status
    if status == -9:
        return "the process was killed: out of host memory, or by hand"
    how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
    return f"the process ended with {how}" + (f": {lines[-1][:300]}" if lines else "")


def out_of_memory(failure: Failure | None) -> bool:
    """Did it fail for want of memory, which other processes may have taken?"""
    return failure is not None and "out of memory" in failure.reason
