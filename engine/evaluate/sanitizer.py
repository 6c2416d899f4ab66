"""compute-sanitizer's four tools on one call of a winner: what is asked, and how the answers are read.

A tool that does not run here (not installed, refused by a virtual machine, too slow) is reported as not run with its
own words. Only what happened in the candidate's kernels counts: torch's own leave memory unwritten on purpose.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.contract import Contract
from contracts.errors import WorkerTimeoutError
from engine import processes
from engine.evaluate import sandbox
from engine.evaluate.profile import LAUNCH, launch_spec
from engine.evaluate.replies import plain_text
from engine.evaluate.screen import mask_comments
from engine.records import Build, Check, Device
from engine.toolchain import Toolchain

TIMEOUT_S = 150.0
MOST_BYTES = 256 << 20
FOUND = 97  # Our own exit status for "the tool reported errors".
_PREFIX = re.compile(r"^=+ ?")
# The tool saw no call of CUDA at all, whatever status it ends with.
_BLIND = re.compile(r"Error: (?:Target application terminated before|No attachable process)")
_KERNEL = re.compile(r"\b(?:at|in) (?:0x[0-9a-f]+ in )?(?:\S+?:\d+:)?(?:void )?(?:\w+::)*([A-Za-z_]\w*)\s*[<(+]")
_PLACE = re.compile(r"\b(cuda_source\.cu:\d+)")
_GLOBAL = re.compile(
    r"\b__global__\b(?:\s|__launch_bounds__\s*\([^)]*\)|__cluster_dims__\s*\([^)]*\)|static|inline|void)*\s*(\w+)\s*\(")


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool.

    Attributes:
        check: The check it is booked under.
        name: As compute-sanitizer calls it.
        finding: What the first line of a finding looks like.
        options: Beside those of all tools.
        everywhere: Findings count in whatever kernel they are: code outside of kernels may be at fault, too.
    """

    check: str
    name: str
    finding: re.Pattern[str]
    options: tuple[str, ...] = ()
    everywhere: bool = False


TOOLS = (
    Tool("sanitizer", "memcheck", re.compile(r"Invalid|Misaligned|Out-of-range"),
         ("--report-api-errors", "no"), everywhere=True),
    Tool("initcheck", "initcheck", re.compile(r"Uninitialized")),
    # Warnings are threads that write the same value to the same place.
    Tool("racecheck", "racecheck", re.compile(r"Error: .*(?:[Rr]ace|hazard)"), ("--racecheck-report", "analysis")),
    Tool("synccheck", "synccheck", re.compile(r"Barrier error|Invalid|Divergent")),
)


async def run_all(
    toolchain: Toolchain, contract: Contract, build: Build, source: str, device: Device
) -> list[Check]:
    """One call of the smallest variant under each tool in turn."""
    program = toolchain.compute_sanitizer
    if program is None:
        return [_not_run(tool, "compute-sanitizer is not installed") for tool in TOOLS]
    smallest = min(contract.variants, key=lambda v: sum(s.size_bytes for s in (*v.tensors.values(), *v.outputs)))
    size = sum(s.size_bytes for s in (*smallest.tensors.values(), *smallest.outputs))
    if size > MOST_BYTES:
        why = f"the smallest shapes hold {size >> 20} MiB, which would take too long"
        return [_not_run(tool, why) for tool in TOOLS]
    with tempfile.TemporaryDirectory(prefix="hiera-sanitizer-") as folder:
        spec = Path(folder, "launch.json")
        told = launch_spec(replace(contract, variants=(smallest,)), build, device)
        spec.write_text(json.dumps(told), encoding="utf-8")
        # Without the cache every tensor has an allocation of its own, so that its bounds are known.
        environment = processes.child_environment({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TMPDIR": folder})
        assert build.extension is not None
        shown = [Path(build.extension).parent, Path(program).absolute().parent]
        shut_in = await sandbox.tool_prefix(Path(folder), python=toolchain.python, shown=shown)

        async def run(tool: Tool, prefix: Sequence[str]) -> Check:
            words = [*prefix, *command(tool, program, toolchain.python, spec)]
            try:
                done = await processes.run(words, timeout_s=TIMEOUT_S, cwd=folder, env=environment)
            except WorkerTimeoutError:
                return _not_run(tool, f"it took longer than {TIMEOUT_S:g} s")
            except OSError as error:
                return _not_run(tool, str(error))
            return read(tool, done.status, done.output, kernels_of(source), smallest.name)

        checks = []
        for tool in TOOLS:
            check = await run(tool, shut_in)
            if shut_in and not _ran(check):
                # Seen from here, a tool that the sandbox breaks looks like one that is broken.
                check = await run(tool, ())
                shut_in = [] if _ran(check) else shut_in
            checks.append(check)
    return checks


def command(tool: Tool, program: str, python: str, spec: Path) -> list[str]:
    """The command line of one tool."""
    return [program, "--tool", tool.name, "--error-exitcode", str(FOUND), "--print-limit", "20", *tool.options, python,
            "-u", str(LAUNCH), str(spec)]


def read(tool: Tool, status: int, output: str, kernels: Sequence[str], variant: str) -> Check:
    """What a tool's output says.

    Args:
        tool: Which it was.
        status: Its exit status.
        output: All that it and the program wrote.
        kernels: Names of the candidate's kernels.
        variant: Name of the shapes, for the report.
    """
    reports = _reports(plain_text(output))
    blind = next((report[0] for report in reports if _BLIND.match(report[0])), "")
    if blind:
        return _not_run(tool, f"it ended with status {status}: {blind[:200]}")
    found = [report for report in reports if tool.finding.match(report[0])]
    own = [report for report in found if tool.everywhere or _kernel(report) in kernels]
    if own:
        return Check(name=tool.check, status="fail", detail=_told(own[0]) + _more(len(own)))
    if tool.everywhere and status == FOUND:
        return Check(name=tool.check, status="fail", detail=_told(reports[0]) if reports else "errors without a report")
    if status not in (0, FOUND):
        last = reports[-1][0] if reports else (output.strip().splitlines() or [""])[-1]
        return _not_run(tool, f"it ended with status {status}: {last[:200]}")
    if not any("SUMMARY" in report[0] for report in reports):
        return _not_run(tool, "it wrote no summary")
    left = f"; {len(found)} findings in kernels that are not the candidate's" if found else ""
    return Check(name=tool.check, status="pass", detail=f"{tool.name} on variant {variant}{left}")


def kernels_of(source: str) -> tuple[str, ...]:
    """Names of the kernels that `source` defines."""
    return tuple(dict.fromkeys(_GLOBAL.findall(mask_comments(source))))


def _reports(output: str) -> list[list[str]]:
    """The tool's lines, each headline with the indented lines that follow it."""
    reports: list[list[str]] = []
    for line in output.splitlines():
        if not line.startswith("========="):
            continue
        text = _PREFIX.sub("", line)
        if text.startswith(" ") and reports:
            reports[-1].append(text.strip())
        elif text.strip():
            reports.append([text.strip()])
    return reports


def _kernel(report: Sequence[str]) -> str:
    for line in (*report[1:], report[0]):
        match = _KERNEL.search(line)
        if match:
            return match[1]
    return ""


def _told(report: Sequence[str]) -> str:
    place = next((match[1] for line in report if (match := _PLACE.search(line))), "")
    kernel = _kernel(report)
    where = f" in {kernel}" if kernel and kernel not in report[0] else ""
    return (report[0] + where + (f" ({place})" if place and place not in report[0] else ""))[:300]


def _more(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""


def _ran(check: Check) -> bool:
    return not check.status.startswith("not run")


def _not_run(tool: Tool, why: str) -> Check:
    return Check(name=tool.check, status=f"not run: {why}")
