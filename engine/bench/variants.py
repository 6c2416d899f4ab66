"""Variants of the whole search that an ablation compares (paper: figures 4 and 5), by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from contracts.contract import SPACES
from contracts.errors import ConfigError
from engine.agents import Agent
from engine.trajectory import Job

FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to search.

    Attributes:
        name: As it is written on the command line and in the results.
        title: As it is shown.
    """

    name: str
    title: str


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(name=FULL, title="HIERA"),
        *(Variant(name=f"fixed:{space}", title=f"{space} only") for space in SPACES),
        Variant(name="no-planning", title="without planning"),
        Variant(name="no-contract", title="without contract"),
    )
}


def parse(text: str | None) -> tuple[str, ...]:
    """Names of variants, each once, in the order given; `all` is every one that needs no language model.

    Raises:
        ConfigError: There is no such variant.
    """
    names: list[str] = []
    for part in (text or FULL).split(","):
        name = part.strip()
        if name == "all":
            names += [known for known in VARIANTS if known != "no-contract"]
        elif name in VARIANTS:
            names.append(name)
        else:
            raise ConfigError(f"--ablation: there is no variant {name!r}",
                              hint=f"use all, or some of {', '.join(VARIANTS)}")
    return tuple(dict.fromkeys(names))


def job_of(variant: str, job: Job) -> Job:
    """The job as the variant wants it.

    Raises:
        ConfigError: The variant is one of a language model, and none works.
    """
    kind, _, space = variant.partition(":")
    if kind == "fixed":
        return replace(job, space=space, fixed_space=True)  # type: ignore[arg-type]
    if variant == "no-planning" and job.agent == "llm":
        return replace(job, llm=replace(job.llm, planning=False))
    if variant == "no-contract":
        if job.agent != "llm":
            raise ConfigError("no-contract is about what a language model is told",
                              hint="add --agent llm, or leave it out")
        return replace(job, llm=replace(job.llm, contract=False))
    return job


def agent_of(variant: str, job: Job) -> Agent | None:
    """The agent that the variant needs in place of the job's own, or None."""
    if variant == "no-planning" and job.agent == "expert":
        from engine.bench.unplanned import UnplannedAgent

        return UnplannedAgent()
    return None
