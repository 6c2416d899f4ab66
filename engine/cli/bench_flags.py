"""Flags of `hiera bench`, beside those that it shares with other commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add_arguments(add: argparse.ArgumentParser, *, positive: Callable[[str], int],
                  seconds: Callable[[str], float]) -> None:
    """Add the flags to the command's parser.

    Args:
        add: The parser.
        positive: Reads a whole number of 1 or more.
        seconds: Reads a number above 0.
    """
    add.add_argument("tasks", metavar="TASKS.jsonl", nargs="?", help="one {level, id, name, code} a line")
    add.add_argument("--out", metavar="FILE", help="JSON lines, one a task; baselines are kept beside it")
    add.add_argument("--resume", action="store_true", help="go on with the output, also after a kill")
    add.add_argument("--retry", action="store_true", help="go on, and run tasks again that have nothing verified")
    chosen = add.add_argument_group("which tasks")
    chosen.add_argument("--ids", help="comma-separated tasks: 14 (any level), 2/14, or a range 2/10-20")
    chosen.add_argument("--levels", help="comma-separated levels")
    chosen.add_argument("--sample", type=positive, metavar="N", help="N tasks only, of each level alike")
    limits = add.add_argument_group("limits")
    limits.add_argument("--seconds", type=seconds, metavar="S", help="seconds this sitting may take, whatever hangs")
    limits.add_argument("--limit-s", type=seconds, metavar="S", help="seconds a task may search")
    limits.add_argument("--budget", type=positive, metavar="N", help="candidates a task at most")
    limits.add_argument("--tokens", type=positive, metavar="N", help="limit on a language model's tokens a task")
    how = add.add_argument_group("how")
    how.add_argument("--gpus", metavar="0,1", help="GPUs that work side by side, each on tasks of its own")
    how.add_argument("--parallel", type=positive, default=2, metavar="N",
                     help="tasks at a time on a GPU: one times while others build (default 2)")
    how.add_argument("--ablation", metavar="V,V",
                     help="variants to compare: full, fixed:SPACE, no-planning, no-contract; all (default full)")
    how.add_argument("--no-recheck", dest="recheck", action="store_false",
                     help="do not judge winners again in a fresh process and by KernelBench's protocol")
    how.add_argument("--no-retime", dest="retime", action="store_false",
                     help="do not time the best of a search again, longer: for what is verified, not how fast it is")
    how.add_argument("--no-paired-compile", dest="paired", action="store_false",
                     help="searches do not compile for themselves: torch.compile is then a baseline beside them only")
    how.add_argument("--no-baselines", dest="forms", action="store_const", const="",
                     help="do not measure eager, torch.compile and CUDA graphs beside the search")
    how.add_argument("--forms", metavar="F,F", dest="forms",
                     help="baselines to measure: eager, compile, compile max-autotune, graph (default all)")
    how.add_argument("--baselines", metavar="FILE", action="append",
                     help="baselines of an earlier sitting on the same device and torch, not to be measured again")
    how.add_argument("--profile", action="store_true", help="take counters of promising candidates too")
    how.add_argument("--no-confirm", dest="confirm", action="store_const", const=False,
                     help="do not rebuild winners with PyTorch's own headers")
    how.add_argument("--commit", metavar="TEXT", help="the state of HIERA's text, where git cannot be asked")
    show = add.add_argument_group("what is shown")
    show.add_argument("--summary", metavar="FILE", nargs="+", help="run nothing: sum up these result files")
    show.add_argument("--per-task", action="store_true", help="one line a task in the summary as well")
    show.add_argument("--json", metavar="FILE", help="write the summary as JSON; - for stdout")
    show.add_argument("--plots", metavar="DIR", help="draw the summary (needs matplotlib)")
