"""How large a search is: rounds and candidates a round, by preset or by the job's own numbers."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.errors import ConfigError
from engine.trajectory import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Rounds and candidates a round (paper: 3 x 6; its case study: 5 x 10)."""

    rounds: int
    per_round: int


PRESETS = {
    "quick": Preset(rounds=2, per_round=3),
    "normal": Preset(rounds=3, per_round=6),
    "deep": Preset(rounds=5, per_round=10),
}


def limits(job: Job) -> tuple[int, int]:
    """Rounds and candidates at most: the job's own, else the preset's.

    Raises:
        ConfigError: There is no such preset.
    """
    preset = PRESETS.get(job.preset)
    if preset is None:
        raise ConfigError(f"there is no preset {job.preset!r}", hint=f"use one of {', '.join(PRESETS)}")
    rounds = job.rounds or preset.rounds
    return rounds, job.budget or rounds * preset.per_round
