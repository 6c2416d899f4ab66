"""The services of this machine: who plans, and extraction, device, workload and evaluation in local processes."""

from __future__ import annotations

from contracts.errors import ConfigError
from engine.agents import Agent
from engine.agents.expert import ExpertAgent
from engine.trajectory import Job


def make_agent(job: Job) -> Agent:
    """The agent that the job names.

    Raises:
        ConfigError: There is none of this name.
    """
    if job.agent == "expert":
        return ExpertAgent()
    raise ConfigError(f"there is no agent {job.agent!r}", hint="use expert")
