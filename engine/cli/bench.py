"""`hiera bench`: tasks in KernelBench's form through the loop, and the tables of fast_p."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError
from engine.bench import baselines, plots, tables, variants
from engine.bench import run as runner
from engine.bench.lines import read_lines
from engine.bench.rows import read_rows
from engine.bench.summary import Baselines
from engine.cli import common
from engine.process_tree import adopt_orphans, descendants, kill_tree
from engine.trajectory import ModelOptions

INTERRUPTED = 130


def bench(arguments: argparse.Namespace) -> int:
    """Run the tasks, or sum up; 0 when all went its way, also for tasks without a verified candidate."""
    common.check_writable(arguments.json)
    if arguments.plots:
        plots.require()
    for file in arguments.baselines or ():
        read_lines(Path(file))  # It would else fail at the end of a long job.
    if arguments.summary:
        return _show([Path(file) for file in arguments.summary], arguments)
    if not arguments.tasks:
        raise ConfigError("there is nothing to run", hint="give TASKS.jsonl and --out FILE, or --summary FILE")
    if not arguments.out:
        raise ConfigError("nothing says where the results go", hint="add --out FILE.jsonl")
    options = _options(arguments)
    if options.out.is_dir():
        raise ConfigError("the result file is a folder", hint="name a .jsonl file", file=options.out)
    cancelled = False

    async def main(cancel: asyncio.Event) -> list[dict[str, Any]]:
        nonlocal cancelled
        rows = await runner.run(options, on_line=_say, cancel=cancel)
        cancelled = cancel.is_set()
        return rows

    # Tools of a task that was killed would otherwise go on without anyone who could end them.
    adopt_orphans()
    others = descendants(os.getpid())
    try:
        rows = common.run(main)
    finally:
        kill_tree(os.getpid(), with_root=False, spared=others)
    if rows:
        _show([options.out], arguments)
    if cancelled:
        _say(f"interrupted; go on with --resume --out {options.out}")
        return INTERRUPTED
    return 0


def _options(arguments: argparse.Namespace) -> runner.BenchOptions:
    python = arguments.python
    if python and Path(python).exists():
        # Not resolved: a virtual environment's python is a link, and the link is what selects it.
        python = str(Path(python).absolute())
    return runner.BenchOptions(
        tasks=Path(arguments.tasks), out=Path(arguments.out), ids=arguments.ids, levels=arguments.levels,
        sample=arguments.sample, seconds=arguments.seconds, limit_s=arguments.limit_s,
        resume=arguments.resume or arguments.retry, retry=arguments.retry, parallel=arguments.parallel,
        gpus=_gpus(arguments.gpus), variants=variants.parse(arguments.ablation), recheck=arguments.recheck,
        retime=arguments.retime,
        paired=arguments.paired, forms=_forms(arguments.forms), commit=arguments.commit,
        baselines=tuple(Path(file) for file in arguments.baselines or ()), preset=arguments.preset or "normal",
        budget=arguments.budget, space=arguments.space, agent=arguments.agent or "expert",
        precision=arguments.precision or "match", device=arguments.device or "auto", python=python or "",
        confirm=arguments.confirm is not False, profile=arguments.profile is True, tokens=arguments.tokens,
        fixed_space=arguments.fixed_space is True,
        llm=common.model_of(arguments, Path.cwd()) if arguments.agent == "llm" else ModelOptions(),
    )


def _show(files: list[Path], arguments: argparse.Namespace) -> int:
    """Print the summary of result files and the baselines beside them."""
    rows = [row for file in files for row in read_rows(file)]
    if not rows:
        raise ConfigError("there are no results in it", hint="name a file that `hiera bench --out` wrote",
                          file=files[0])
    beside = [path for file in files if (path := runner.baseline_file(file)).exists()]
    kept = Baselines(row for path in (*map(Path, arguments.baselines or ()), *beside) for row in read_lines(path))
    if arguments.json != "-":
        print(tables.text(rows, kept, tasks=arguments.per_task))
    common.write_json(arguments.json, tables.document(rows, kept))
    if arguments.plots:
        for path in plots.draw(rows, kept, Path(arguments.plots)):
            _say(f"drew {path}")
    return 0


def _gpus(text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise ConfigError(f"--gpus: {text!r} is no list of GPUs", hint="write 0,1")
    return tuple(dict.fromkeys(map(int, parts)))


def _forms(text: str | None) -> tuple[str, ...]:
    if text is None:
        return baselines.FORMS
    forms = tuple(part.strip() for part in text.split(",") if part.strip())
    if unknown := [form for form in forms if form not in baselines.FORMS]:
        raise ConfigError(f"--forms: there is no baseline {unknown[0]!r}", hint=f"use {', '.join(baselines.FORMS)}")
    return forms


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
