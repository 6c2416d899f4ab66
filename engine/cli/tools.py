"""`hiera doctor`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from contracts import codec
from engine import doctor as machine
from engine.cli import common

MARKS = {"ok": "ok     ", "warn": "limited", "missing": "MISSING"}


def doctor(arguments: argparse.Namespace) -> int:
    """What works on this machine, what does not, and the command that mends it."""
    common.check_writable(arguments.json)

    async def main(_cancel: asyncio.Event) -> tuple[machine.Finding, ...]:
        return await machine.run(arguments.python, near=Path.cwd(), device=arguments.device or "auto")

    findings = common.run(main)
    if arguments.json != "-":
        width = max((len(finding.name) for finding in findings), default=0)
        for finding in findings:
            print(f"{MARKS.get(finding.status, finding.status)}  {finding.name:{width}}  {finding.detail}")
            if finding.fix:
                print(f"{'':{width + 11}}to fix: {finding.fix}", file=sys.stdout)
    common.write_json(arguments.json, {"schema": 1, "findings": [codec.to_data(finding) for finding in findings]})
    return machine.exit_status(findings)
