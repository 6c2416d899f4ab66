"""The module as configured, in its other memory formats: one line of a user's, and cuDNN picks other kernels.

Where torch's flags allow TF32, a convolution may use it in channels-last only. Its error in the format that the example
happens to have is then not all that the module as configured may do, and a candidate that takes the other is honest.
"""

import torch
from _hiera_worker import judge_compare, judge_state
from _hiera_worker.judge_state import LARGE_BYTES, State

# By number of dimensions. Other tensors have one format only.
FORMATS = ({4: torch.contiguous_format, 5: torch.contiguous_format},
           {4: torch.channels_last, 5: torch.channels_last_3d})


def applies():
    """Could other kernels of other precision run where only the memory format differs?

    A reference that is CUDA text may read its arguments as if they were contiguous: its formats say nothing.
    """
    state = State
    graph = state.contract["variants"][0].get("graph")
    convolves = graph is None or any("conv" in node["op"] for node in graph["nodes"])
    return (state.device.type == "cuda" and state.configurable and convolves
            and state.contract["reference"] != "cuda" and state.set_bytes < LARGE_BYTES)


def judged_again(found, number, values, zero_mean, loose):
    """The verdict on output `number` where the module's larger error of all formats counts as its own.

    The references run at most once for a draw, and only where a verdict may depend on it.

    Args:
        found: What `judge_output` found with the error in the contract's own formats. Its `strict` stays.
        number, values, zero_mean, loose: As there.
    """
    state = State
    if state.wider is None:
        state.wider = _wider() if applies() else list(state.expected)
    if state.wider[number] is state.expected[number]:
        return found
    again = judge_compare.judge_output(values, state.wider[number], zero_mean, loose)
    return {**again, "strict": found["strict"], "why": found["why"]} if again["match"] else found


def _wider():
    """What every output must be, with the largest error of any memory format where that is known."""
    state = State
    made = list(state.expected)
    # Mutable arguments hold what the candidate left there, and stay so: that is what is being compared.
    before = {**state.values, **state.saved}
    with state.reference.kept_placed():
        for formats in FORMATS:
            if all(value.is_contiguous(memory_format=formats[value.dim()]) for value in before.values()
                   if _has_formats(value)):
                continue
            try:
                _widen(made, formats, before)
            except Exception:  # Out of memory, or a view that this format does not allow: the first verdict holds.
                continue
    judge_state.release_cache()
    return made


def _widen(made, formats, before):
    state = State
    tensors = {name: value.clone(memory_format=formats[value.dim()] if _has_formats(value) else torch.preserve_format)
               for name, value in before.items()}
    runs = []
    for precision in ("strict", "configured"):
        torch.manual_seed(state.seed)
        runs.append(state.reference.run(tensors, precision))
    for number, (expected, strict, configured) in enumerate(zip(state.expected, *runs)):
        # Dropout draws in the order of memory, and a user's own kernel may take none but one format: where the module
        # itself says something else in this format, its error there says nothing about rounding.
        told = judge_compare.flat(strict)
        if expected.is_float and judge_compare.judge_output(told, expected, zero_mean=False)["strict"]:
            made[number] = made[number].wider(judge_compare.flat(configured))


def _has_formats(value):
    return value.dtype in judge_compare.UNIT and value.dim() in FORMATS[0]
