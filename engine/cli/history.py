"""`hiera runs`, `hiera show`, `hiera report`."""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

from engine import report, report_html
from engine.cli import common
from engine.store import Store


def runs(arguments: argparse.Namespace) -> int:
    """One line a run, newest first."""
    lines = []
    for info in islice(Store().runs(), arguments.limit):
        trajectory = info.trajectory
        state = trajectory.stopped.reason if trajectory.stopped else "not finished"
        count = f"{len(trajectory.candidates)} candidates"
        lines.append(f"{info.run}  {info.started:%Y-%m-%d %H:%M}  {count:14}  {report.best_words(trajectory)}; {state}")
    print("\n".join(lines) or "there are no runs yet; `hiera optimize FILE` makes one")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """All evidence of one run."""
    store = Store()
    trajectory = store.load(arguments.run)
    folder = store.find(arguments.run)
    if arguments.json != "-":
        print(report.text(trajectory, folder=folder))
    common.write_json(arguments.json, report.document(trajectory, folder=folder))
    return 0


def report_page(arguments: argparse.Namespace) -> int:
    """One run as an HTML page."""
    common.check_writable(arguments.html)
    common.write_text(Path(arguments.html), report_html.page(Store().load(arguments.run)))
    print(f"wrote {arguments.html}")
    return 0
