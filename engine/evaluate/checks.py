"""Every named check of the evaluator, and how results become a verdict.

| check | what must hold |
| --- | --- |
| null test | zeros, a constant and another seed's output would all be rejected on this contract |
| runs | no call raises, crashes, hangs or leaves the process |
| outputs | number, type, dtype, shape, device of every output; dense storage |
| numeric | error against fp64 within the contract's policy, on every input family and element |
| not trivial | outputs are better than a constant |
| shape variants | the same on the contract's other shapes |
| special values | NaN in an input is not swallowed |
| poison | no element holds the pattern that lay in the output before the call |
| inputs untouched | inputs, parameters and buffers have the same checksum after the call |
| guard bands | memory around arguments and outputs is unchanged |
| alias | no output lies in an input's memory, unless the reference's does |
| fresh inputs | same pointers with new values, new pointers with the same values, changed weights: all count |
| one element changed | so does one element of what the candidate just saw, wherever it is |
| held outputs | an earlier output is unchanged after later calls |
| repeatability | the same inputs give the same result within the error budget |
| stream order | results are ready for work enqueued on the current stream right after the call |
| cuda errors | no error pending after a call |
| backend flags | torch's flags, current stream and L2 limit are as before |
| threads | no thread appears after the first calls |
| timed calls audited | outputs of timed calls, picked afterwards, are right |
| wall clock | the parent's own clock agrees with the events |
| plausible time | not faster than the memory system allows |
| sanitizer | compute-sanitizer memcheck finds nothing (winner only) |
| real headers | the same source built with PyTorch's own headers passes again (winner only) |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.records import Check, Verification

NAMES = (
    "null test", "runs", "outputs", "numeric", "not trivial", "shape variants", "special values", "poison",
    "inputs untouched", "guard bands", "alias", "fresh inputs", "one element changed", "held outputs", "repeatability",
    "stream order", "cuda errors", "backend flags", "threads", "timed calls audited", "wall clock", "plausible time",
    "sanitizer", "real headers",
)
# Wrong values follow from most other faults.
SYMPTOMS = ("not trivial", "shape variants", "special values", "repeatability", "numeric", "sanitizer", "real headers")
# What a candidate must meet whatever the precision policy. `numeric` follows the policy.
GATES = frozenset(NAMES) - {"numeric", "special values"}


@dataclass(slots=True)
class Ledger:
    """Results of checks while a candidate is judged: the first failure of a name stays."""

    precision: str
    failures: dict[str, str] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, bool] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def ok(self, name: str, detail: str = "") -> None:
        """The check ran and found nothing."""
        assert name in NAMES, name
        if detail or name not in self.passed:
            self.passed[name] = detail

    def fail(self, name: str, detail: str) -> None:
        """The check found something."""
        assert name in NAMES, name
        self.failures.setdefault(name, detail)

    def skip(self, name: str, why: str) -> None:
        """The check did not run."""
        assert name in NAMES, name
        self.skipped.setdefault(name, why)

    def require(self, name: str, holds: bool, detail: str) -> None:
        """Record one or the other."""
        if holds:
            self.ok(name)
        else:
            self.fail(name, detail)

    def verdict(self, policy: str, holds: bool | None) -> None:
        """All trials of a policy must hold; None says nothing."""
        if holds is not None:
            self.verdicts[policy] = self.verdicts.get(policy, True) and holds

    def worst(self, name: str, value: float) -> None:
        """Keep the largest value of a metric."""
        self.metrics[name] = max(self.metrics.get(name, 0.0), value)

    @property
    def rejected(self) -> bool:
        """True once nothing later can save the candidate under its policy."""
        gating = GATES if self.precision == "kernelbench" else GATES | {"special values"}
        return bool(gating & set(self.failures)) or self.verdicts.get(self.precision) is False

    def reason(self) -> str | None:
        """One sentence that names the failed check that explains most: causes before wrong numbers."""
        for name in (*(n for n in NAMES if n not in SYMPTOMS), *SYMPTOMS):
            if name in self.failures:
                return f"{name}: {self.failures[name]}"
        return None

    def verification(self, where: str, isolation: str, expected: Sequence[str] = ()) -> Verification:
        """Everything as plain data. Names in `expected` that never ran are reported as such."""
        checks = []
        for name in NAMES:
            if name in self.failures:
                checks.append(Check(name=name, status="fail", detail=self.failures[name]))
            elif name in self.passed:
                checks.append(Check(name=name, status="pass", detail=self.passed[name]))
            elif name in self.skipped or name in expected:
                why = self.skipped.get(name, "an earlier check failed")
                checks.append(Check(name=name, status=f"not run: {why}"))
        gate = not GATES & set(self.failures)
        strong = gate and "special values" not in self.failures
        return Verification(
            match=_and(self.verdicts.get("match"), strong), strict=_and(self.verdicts.get("strict"), strong),
            kernelbench=_and(self.verdicts.get("kernelbench"), gate), checks=tuple(checks), where=where,
            isolation=isolation, metrics=dict(self.metrics),
        )


def _and(verdict: bool | None, gate: bool) -> bool | None:
    if not gate:
        return False
    return verdict
