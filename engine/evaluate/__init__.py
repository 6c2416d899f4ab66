"""Evidence: screen → build → verify → time → profile, one module each.

The loop above knows only `Evaluator.evaluate`; nothing above it may assume one GPU or one machine.
"""

from __future__ import annotations

from typing import Protocol

from contracts.contract import Contract
from engine.records import Candidate, Evaluation


class Evaluator(Protocol):
    """Anything that can turn a candidate into evidence."""

    async def evaluate(self, contract: Contract, candidate: Candidate) -> Evaluation:
        """Judge one candidate. A candidate that fails is an `Evaluation`, never an exception."""
        ...
