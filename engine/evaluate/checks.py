"""Every named check of the evaluator, and how results become a verdict.

| check | what must hold |
| --- | --- |
| null test | zeros, a constant and another seed's output would all be rejected on this contract |
| runs | no call raises, crashes, hangs or leaves the process |
| outputs | number, type, dtype, shape, device of every output; dense storage |
| numeric | error against fp64 within the contract's policy, on every input family and element |
| not trivial | outputs are better than a constant |
| shape variants | the same on the contract's other shapes |
| special values | NaN, infinities and numbers below the normal ones in an input come out as the reference's do |
| bias | no error of one sign in every draw, however small |
| misaligned views | inputs that begin one element behind an aligned address: right, or refused |
| poison | no element holds the pattern that lay in the output before the call |
| inputs untouched | inputs, parameters and buffers have the same checksum after the call |
| guard bands | memory around arguments and outputs is unchanged |
| alias | no output lies in an input's memory, unless the reference's does |
| fresh inputs | same pointers with new values, new pointers with the same values, changed weights: all count |
| one element changed | so does one element of what the candidate just saw, wherever it is |
| held outputs | an earlier output is unchanged after later calls |
| repeatability | the same inputs give the same result within the error budget |
| under load | so they do while another process keeps the GPU busy |
| quiet | the process does nothing while nothing is asked of it |
| stream order | results are ready for work enqueued on the current stream right after the call |
| cuda errors | no error pending after a call |
| host access | host code reads and writes host memory only |
| backend flags | torch's flags, current device and stream and L2 limit are as before |
| threads | no thread appears after the first calls |
| timed calls audited | outputs of timed calls, picked afterwards, are right |
| calls alike | a timed call takes as long as the others of its block: none does the work of several |
| wall clock | the parent's own clock agrees with the events |
| plausible time | not faster than the memory system allows |
| sanitizer | compute-sanitizer memcheck finds nothing (winner only) |
| initcheck, racecheck, synccheck | nor do its other tools (winner only) |
| second process | a second fresh process with other seeds accepts it too (winner only) |
| real headers | the same source built with PyTorch's own headers passes again (winner only) |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from engine.records import Check, Verification

NAMES = (
    "null test", "runs", "outputs", "numeric", "not trivial", "bias", "shape variants", "misaligned views",
    "special values", "poison", "inputs untouched", "guard bands", "alias", "fresh inputs", "one element changed",
    "held outputs", "repeatability", "under load", "stream order", "cuda errors", "host access", "backend flags",
    "threads", "quiet", "timed calls audited", "calls alike", "wall clock", "plausible time", "real headers",
    "second process", "sanitizer", "initcheck", "racecheck", "synccheck",
)
WINNER_ONLY = frozenset(NAMES[NAMES.index("real headers"):])
WHEN_TIMED = frozenset({"timed calls audited", "calls alike", "wall clock", "plausible time"})
# Wrong values follow from most other faults.
SYMPTOMS = (
    "not trivial", "shape variants", "bias", "special values", "repeatability", "under load", "numeric",
    *sorted(WINNER_ONLY),
)
# What a candidate must meet whatever the precision policy. `numeric` follows the policy, and what KernelBench accepts
# may have a bias and swallow NaN.
BEYOND_KERNELBENCH = frozenset({"special values", "bias"})
GATES = frozenset(NAMES) - {"numeric"} - BEYOND_KERNELBENCH


@dataclass(slots=True)
class Ledger:
    """Results of checks while a candidate is judged: the first failure of a name stays."""

    precision: str
    failures: dict[str, str] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, bool] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    # Why the candidate was left before the end, where it was: what did not run says so, and nothing is known to hold.
    left: str = ""

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
        gating = GATES if self.precision == "kernelbench" else GATES | BEYOND_KERNELBENCH
        return bool(gating & set(self.failures)) or self.verdicts.get(self.precision) is False

    def reason(self) -> str | None:
        """One sentence that names the failed check that explains most: causes before wrong numbers."""
        for name in (*(n for n in NAMES if n not in SYMPTOMS), *SYMPTOMS):
            if name in self.failures:
                return f"{name}: {self.failures[name]}"
        return None

    def verification(self, where: str, isolation: str) -> Verification:
        """Everything as plain data: every check by its name, those that never ran with the reason."""
        checks = []
        for name in NAMES:
            if name in self.failures:
                checks.append(Check(name=name, status="fail", detail=self.failures[name]))
            elif name in self.passed:
                checks.append(Check(name=name, status="pass", detail=self.passed[name]))
            else:
                checks.append(Check(name=name, status=f"not run: {self.skipped.get(name) or self._why_not(name)}"))
        gate = not GATES & set(self.failures)
        strong = gate and not BEYOND_KERNELBENCH & set(self.failures)
        holds = {policy: found for policy, found in self.verdicts.items() if not (found and self.left)}
        return Verification(
            match=_and(holds.get("match"), strong), strict=_and(holds.get("strict"), strong),
            kernelbench=_and(holds.get("kernelbench"), gate), checks=tuple(checks), where=where,
            isolation=isolation, metrics=dict(self.metrics),
        )

    def _why_not(self, name: str) -> str:
        if self.rejected:
            return "an earlier check failed"
        if self.left:
            return self.left
        if name in WINNER_ONLY:
            return "for a winner only"
        return "it was not timed" if name in WHEN_TIMED else "nothing here calls for it"


def merged(verification: Verification, later: Iterable[Check]) -> Verification:
    """`verification` with checks that ran afterwards in the place of those that had not run."""
    found = {check.name: check for check in later}
    kept = tuple(found.pop(check.name, check) for check in verification.checks)
    return replace(verification, checks=kept + tuple(found.values()))


def _and(verdict: bool | None, gate: bool) -> bool | None:
    if not gate:
        return False
    return verdict
