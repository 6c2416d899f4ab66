"""What can go wrong when a model is asked, each with one sentence for the user and a way out."""

from __future__ import annotations

from contracts.errors import AgentError


class ModelError(AgentError):
    """The model gave no usable answer.

    Args:
        kind: Stable word: `key`, `account`, `model`, `address`, `refused`, `context`, `network`, `timeout`,
            `rate`, `server`, `truncated`, `blocked`, `empty`, `malformed`, `budget`.
        problem: One sentence.
        hint: The way out.
    """

    # Asking again cannot help before the user changes something.
    FINAL = frozenset({"key", "account", "model", "address", "budget"})

    def __init__(self, kind: str, problem: str, *, hint: str) -> None:
        super().__init__(problem, hint=hint)
        self.kind = kind

    @property
    def final(self) -> bool:
        """True where asking again cannot help."""
        return self.kind in self.FINAL
