"""compute-sanitizer's four tools on one call of a winner: what is asked, and how the answers are read.

A tool that does not run here (not installed, refused by a virtual machine, too slow) is reported as not run with its
own words. Only what happened in the candidate's kernels counts: torch's own leave memory unwritten on purpose.
"""

from __future__ import annotations

import itertools
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
# What a tool says of itself and of the program it runs, which is no finding about the memory that kernels touch.
_ASIDE = re.compile(r"Error: |Target application|Tracking kernels|Device not supported|Internal |Warning|"
                    r"COMPUTE-SANITIZER|.*SUMMARY")
# What our launcher says last. A tool that ran nothing may print a clean summary all the same.
_CALLED = re.compile(r'"ok": true')
_NOT_CALLED = re.compile(r'"ok": false, "problem": "((?:[^"\\]|\\.)*)"')
# `at scale(float *)+0xf0`, `at 0x120 in file.cu:31:void scale<4>(float *)`, `Device Frame: scale(float *)+0xb0`.
_FUNCTION = re.compile(
    r"(?:\b(?:at|in) |\bFrame: ?)(?:0x[0-9a-f]+ in )?(?:\S+?:\d+:)?(?:void )?"
    r"(?:(?:\w+|\(anonymous namespace\)|<unnamed>)::)*([A-Za-z_]\w*)\s*[<(+]")
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
        environment = processes.child_environment({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TMPDIR": folder,
                                                   **processes.bytecode_cache("candidate")})
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

        checks, doubted = [], bool(shut_in)
        for tool in TOOLS:
            check = await run(tool, shut_in)
            if doubted and not _ran(check):
                # Seen from here, a tool that the sandbox breaks looks like one that is broken. Tried once: it is slow.
                doubted = False
                check = await run(tool, ())
                shut_in = [] if _ran(check) else shut_in
            checks.append(check)
    return checks


def command(tool: Tool, program: str, python: str, spec: Path) -> list[str]:
    """The command line of one tool."""
    # Importing torch may take longer than the ten seconds that some versions wait for the first call of CUDA.
    return [program, "--tool", tool.name, "--error-exitcode", str(FOUND), "--print-limit", "20", "--launch-timeout",
            str(int(TIMEOUT_S)), *tool.options, python, "-u", str(LAUNCH), str(spec)]


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
    found = [report for report in reports if tool.finding.match(report[0])]
    own = [report for report in found if tool.everywhere or set(_functions(report)) & set(kernels)]
    if tool.everywhere and status == FOUND:
        own = own or [report for report in reports if not _ASIDE.match(report[0])]  # Such as a wrong free.
    if own:
        return Check(name=tool.check, status="fail", detail=_told(own[0], kernels) + _more(len(own)))
    if refused := _NOT_CALLED.search(output):
        return _not_run(tool, f"the call failed under it: {plain_text(refused[1])[:200]}")
    if status not in (0, FOUND) or not _CALLED.search(output):
        aside = [report[0] for report in reports if "SUMMARY" not in report[0] and "SANITIZER" not in report[0]]
        last = (aside or output.strip().splitlines() or ["it wrote nothing"])[-1]
        return _not_run(tool, f"it ended with status {status}: {plain_text(last)[:200]}")
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


def _functions(report: Sequence[str]) -> list[str]:
    """Functions of the device that a finding names: where it is, then what called that (small ones are inlined)."""
    details = itertools.takewhile(lambda line: not line.startswith("Saved host backtrace"), report[1:])
    lines = [line for line in (*details, report[0]) if not line.startswith("by thread")]
    return [match[1] for line in lines for match in _FUNCTION.finditer(line)]


def _told(report: Sequence[str], kernels: Sequence[str]) -> str:
    place = next((match[1] for line in report if (match := _PLACE.search(line))), "")
    names = _functions(report)
    kernel = next((name for name in names if name in kernels), names[0] if names else "")
    where = f" in {kernel}" if kernel and kernel not in report[0] else ""
    return (report[0] + where + (f" ({place})" if place and place not in report[0] else ""))[:300]


def _more(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""


def _ran(check: Check) -> bool:
    return not check.status.startswith("not run")


def _not_run(tool: Tool, why: str) -> Check:
    return Check(name=tool.check, status=f"not run: {why}")
