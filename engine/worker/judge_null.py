"""The task's own null test: can it tell a kernel from a constant?"""

import torch
from _hiera_worker import judge_compare, judge_state
from _hiera_worker.judge_state import LARGE_BYTES, State


def null_test(request, draw, expectation):
    """Trivial answers that would pass, as a set of names.

    Weights as PyTorch's initialisers make them shrink what flows through many layers until only biases are left. Where
    a task is blind with them, it is tried with weights that carry its inputs through, and keeps those if they help. An
    output may also depend on weights alone, such as one token of an attention that never meets the image, and then to
    the last bit: trials draw weights too, so such a task that tells different weights apart is not blind. One whose
    inputs merely drown in its biases is: a kernel that leaves all layers out would be accepted.

    Args:
        request: `families`, and four `seeds`: of two draws, of the weights, of the references.
        draw: Fills the arguments, see `judge.draw`.
        expectation: Gives what every output must be, for a seed.
    """
    state = State
    passed = _trivial_answers(request, draw, expectation)
    if passed and not state.carrying and any(a["role"] == "parameter" for a in state.tensors):
        state.carrying = True
        carried = _trivial_answers(request, draw, expectation)
        weights_alone = bool(carried) and _same_for_all_inputs(request, draw, expectation)
        state.carrying = not carried
        if not carried:
            passed = set()
        elif weights_alone:
            passed = _trivial_answers(request, draw, expectation, weights=True)
    return passed


def _trivial_answers(request, draw, expectation, weights=False):
    """Trivial answers that pass in every family; with `weights` the two draws differ in their weights as well."""
    passed = None
    for names in map(_trivial_for, _pairs(request, draw, expectation, weights)):
        if names is None:
            continue
        # Every family must be blind for a verdict.
        passed = names if passed is None else passed & names
        if not passed:
            break
    return passed or set()


def _trivial_for(pair):
    """Trivial answers that pass for these two draws; None where the reference is mostly not finite."""
    if any(e.is_float and e.blank_share > 0.5 for e in pair[0]):
        return None
    # One output that tells is enough.
    inputs = [State.values[a["name"]] for a in State.tensors if a["role"] == "input"]
    blind = [judge_compare.passes_trivially(*both, inputs) for both in zip(*pair)]
    return set.intersection(*map(set, blind)) if blind else set()


def _same_for_all_inputs(request, draw, expectation):
    """Are the outputs of two draws equal to the last bit? Where rounding could hide the inputs, they are not."""
    return all(map(_equal, _pairs(request, draw, expectation)))


def _equal(pair):
    return all(torch.equal(one.exact, other.exact) for one, other in zip(*pair))


def _pairs(request, draw, expectation, weights=False):
    """For each family, what two draws must give: of other inputs, and with `weights` of other weights as well."""
    state = State
    # Whether a task says nothing does not depend on its size, but memory for two references does.
    variant = 0 if state.set_bytes + state.out.bytes.numel() < LARGE_BYTES // 2 else min(
        range(len(state.variants)), key=lambda v: sum(judge_state.extent(s) for s in state.variants[v]["outputs"]))
    for family in request["families"]:
        pair = []
        for number, seed in enumerate(request["seeds"][:2]):
            fixed = request["seeds"][2] + (number if weights else 0)
            draw({"variant": variant, "family": family, "seed": seed, "fixed_seed": fixed, "set": 0, "phase": 0})
            made = expectation(request["seeds"][3])
            pair.append(made[:len(made) - len(state.mutable)])
        yield pair
        del pair, made
