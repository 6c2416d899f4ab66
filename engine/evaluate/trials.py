"""Which trials and probes a candidate gets, most telling first. Pure: no process, no clock.

A *trial* is a draw of inputs and one call. A *change* is one element (or two that trade places) of what the candidate
saw a moment ago: what keeps earlier results and looks whether something changed must look at everything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from contracts.contract import Contract

# Where rounding errors of honest sums stay small beside those of lower precision.
ZERO_MEAN = frozenset({"randn", "randn small", "randn large", "half zeros"})
SPECIAL = frozenset({"not a number", "infinite", "minus infinity", "denormal"})
OPTIONAL = ("half zeros", "needle", "integers", "randn small", "shifted", "large mean", "far below zero", "zero rows",
            "infinite", "ties", "ramp", "constant rows", "randn large", "minus infinity", "denormal")
# Operators that may give equal elements in any order, and families full of equal elements.
TIES_IN_ANY_ORDER = frozenset({"topk", "sort", "argsort", "kthvalue", "median", "mode", "msort"})
WITH_TIES = frozenset({"ties", "half zeros", "integers", "constant rows", "zero rows"})
ILL_CONDITIONED = frozenset({"constant rows"})
MOSTLY_BLANK = 0.5
LEAST_CHANGES, MOST_WEIGHTS = 3, 4
ODD_BYTES = 1 << 30
PHASES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much verification a candidate gets.

    Attributes:
        search_s: Wall time after which optional trials are left out.
        call_s: Longest a single call may take, whatever the reference took.
        least_call_s: What a call may take in any case: first calls load modules and start libraries.
        call_factor: Between the two, this many times what the judge needed for the reference.
        calls_s: Longest all calls of one verification may take together.
        judge_s: Longest a reference run may take.
        perturbations: One-element changes at most.
        repeats: Calls with the same inputs.
        trials: Trials with fresh seeds at the example's shape at least.
        held: Results held for the check that later calls leave them alone.
    """

    search_s: float = 2.0
    call_s: float = 20.0
    least_call_s: float = 20.0
    call_factor: float = 100.0
    calls_s: float = 120.0
    judge_s: float = 300.0
    perturbations: int = 8
    repeats: int = 3
    trials: int = 5
    held: int = 3

    def call_limit_s(self, reference_s: float) -> float:
        """What a call may take where the judge needed `reference_s` for the reference: an endless loop costs that."""
        return round(min(self.call_s, max(self.least_call_s, self.call_factor * reference_s)), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One draw and one call. See `plan`."""

    family: str
    variant: int = 0
    phase: int = 0
    late: bool = False
    odd: bool = False
    must: bool = False
    same_values_as_last: bool = False
    same_inputs_new_weights: bool = False
    check: str = "numeric"


def plan(contract: Contract, limits: Limits) -> tuple[Trial, ...]:
    """The trials of one verification, most telling first. Pure."""
    trials = [
        Trial(family="randn", must=True),
        Trial(family="example", must=True),
        Trial(family="randn", late=True, must=True, check="stream order"),
        Trial(family="randn", phase=5, must=True, same_values_as_last=True, check="fresh inputs"),
        Trial(family="randn", phase=5, must=True, same_inputs_new_weights=True, check="fresh inputs"),
    ]
    trials += [Trial(family="randn", variant=i, must=i < 4, check="shape variants")
               for i in range(1, len(contract.variants))]
    trials += [Trial(family="not a number", check="special values")]
    families = [f for f in OPTIONAL if not (ties_in_any_order(contract) and f in WITH_TIES)]
    trials += [Trial(family=family, phase=number % PHASES, check="special values" if family in SPECIAL else "numeric")
               for number, family in enumerate(families)]
    trials += [Trial(family="randn") for _ in range(limits.trials - 3)]
    return tuple(trials)


def misaligned(contract: Contract) -> Trial | None:
    """The trial whose inputs begin one element behind an aligned address, or None where there is no room for it."""
    def size(number: int) -> int:
        return sum(spec.size_bytes for spec in contract.variants[number].tensors.values())

    variant = 0 if size(0) <= ODD_BYTES else min(range(len(contract.variants)), key=size)
    if size(variant) > ODD_BYTES:
        return None
    return Trial(family="randn", variant=variant, odd=True, must=True, check="misaligned views")


def ties_in_any_order(contract: Contract) -> bool:
    """May equal elements come in any order?"""
    return contract.graph is not None and any(node.base in TIES_IN_ANY_ORDER for node in contract.graph.nodes)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an argument that the candidate has just seen.

    Attributes:
        argument: Its name.
        where: `inside` (away from both ends, where fingerprints look first), `last`, `swap` (two elements trade
            places, which no sum sees) or `anywhere`.
    """

    argument: str
    where: str


def changes(contract: Contract, limits: Limits) -> tuple[tuple[Change, ...], int]:
    """Changes to make in turn, and how many of them are made whatever the time.

    The largest weight is always among them, since that is what is worth keeping; the others are drawn.
    """
    inputs = _changeable(contract, "input")
    weights = _changeable(contract, "parameter")
    random.SystemRandom().shuffle(weights)
    largest = max((contract.example.tensors[name].numel for name in weights), default=0)
    weights.sort(key=lambda name: contract.example.tensors[name].numel < largest)
    some = weights[:MOST_WEIGHTS]
    made = [Change(name, "inside") for name in (*inputs, *some[:1])]
    made += [Change(name, "last") for name in (*inputs, *some[:1])]
    made += [Change(name, "swap") for name in (*inputs, *some[:1])]
    made += [Change(name, "inside") for name in some[1:]]
    made += [Change(name, "anywhere") for name in (*inputs, *some)] * limits.perturbations
    least = max(LEAST_CHANGES, min(len(inputs) + len(some[:1]), limits.perturbations))
    return tuple(made), min(len(made), least)


def _changeable(contract: Contract, role: str) -> list[str]:
    return [a.name for a in contract.arguments if a.role == role and a.tensor is not None and a.tensor.numel]
