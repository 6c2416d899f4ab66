"""`hiera bench`: tasks in KernelBench's form through the loop, and the table of fast_p."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError
from engine.bench import run as runner
from engine.bench import summary
from engine.cli import common
from engine.trajectory import ModelOptions

COULD_NOT = 2
INTERRUPTED = 130


def bench(arguments: argparse.Namespace) -> int:
    """Run the tasks; 0 when all have a result, also those without a verified candidate."""
    python = arguments.python
    if python and Path(python).exists():
        # Not resolved: a virtual environment's python is a link, and the link is what selects it.
        python = str(Path(python).absolute())
    options = runner.BenchOptions(
        tasks=Path(arguments.tasks), out=Path(arguments.out), ids=arguments.ids, levels=arguments.levels,
        limit_s=arguments.limit_s, resume=arguments.resume, parallel=arguments.parallel,
        preset=arguments.preset or "normal", budget=arguments.budget, space=arguments.space,
        agent=arguments.agent or "expert", precision=arguments.precision or "match",
        device=arguments.device or "auto", python=python or "", confirm=arguments.confirm is not False,
        profile=arguments.profile is True, tokens=arguments.tokens, fixed_space=arguments.fixed_space is True,
        llm=common.model_of(arguments, Path.cwd()) if arguments.agent == "llm" else ModelOptions(),
    )
    if options.out.is_dir():
        raise ConfigError("the result file is a folder", hint="name a .jsonl file", file=options.out)
    cancelled = False

    async def main(cancel: asyncio.Event) -> list[dict[str, Any]]:
        nonlocal cancelled
        rows = await runner.run(options, on_line=_say, cancel=cancel)
        cancelled = cancel.is_set()
        return rows

    rows = common.run(main)
    if rows:
        print(summary.text(rows))
    if cancelled:
        _say(f"interrupted; go on with --resume --out {options.out}")
        return INTERRUPTED
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
