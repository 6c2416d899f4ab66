"""Counters to a bottleneck with evidence, by the rules of `data/metrics.toml`."""

from __future__ import annotations

import functools
import operator
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from contracts.errors import ContractError
from engine.evaluate.ncu_csv import Launch, SourceLine
from engine.records import Bound, HotLine, KernelCounters, Metric

TABLE = Path(__file__).parent.parent / "data" / "metrics.toml"
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
# A ready warp is no stall.
NO_STALL = ("selected", "not_selected")
HOT_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What limits a call. `bound` is None where no rule holds."""

    bound: Bound | None
    limiter: str
    evidence: tuple[str, ...]


@functools.cache
def table() -> dict[str, Any]:
    """The metrics table.

    Raises:
        ContractError: The data file is broken; the message names the row.
    """
    try:
        data = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ContractError(f"the metrics table cannot be read: {error}", hint="reinstall hiera", file=TABLE) from None
    for rule in data["rule"]:
        if rule["bound"] not in get_args(Bound) or not all(map(_condition, rule["when"])):
            raise ContractError(f"rule for {rule['limiter']!r} has an unknown bound or condition",
                                hint="conditions read `value >= number`", file=TABLE)
    return data


def extra_metrics() -> tuple[str, ...]:
    """Names to ask for beside the sections."""
    return tuple(row["raw"][0] for row in table()["metric"] if row.get("extra"))


def kernel_counters(launches: Sequence[Launch]) -> tuple[KernelCounters, ...]:
    """The documented metrics of every launch, then its stall reasons and its share of the kernel time."""
    total_us = sum(_named(launch).get("duration_us") or 0.0 for launch in launches)
    counters = []
    for launch in launches:
        values = _named(launch)
        metrics = [Metric(name=row["key"], value=values[row["key"]], unit=row["unit"]) for row in table()["metric"]]
        metrics += [Metric(name=f"stall.{state}", value=values.get(f"stall.{state}"), unit="share")
                    for state in table()["stall"]["states"] if f"stall.{state}" in values]
        duration_us = values.get("duration_us")
        share = duration_us / total_us if duration_us is not None and total_us else None
        metrics.append(Metric(name="time_share", value=share, unit="share"))
        counters.append(KernelCounters(kernel=launch.kernel, launch_index=launch.index, metrics=tuple(metrics)))
    return tuple(counters)


def attribute(kernels: Sequence[KernelCounters]) -> Attribution:
    """The first rule that holds for the kernel that takes most of the time."""
    if not kernels:
        return Attribution(bound=None, limiter="", evidence=())
    by_time = [{metric.name: metric.value for metric in kernel.metrics} for kernel in kernels]
    dominant = max(range(len(kernels)), key=lambda i: by_time[i].get("duration_us") or 0.0)
    values = by_time[dominant] | _derived(by_time, dominant)
    rule = next((rule for rule in table()["rule"] if all(_holds(text, values) for text in rule["when"])), None)
    if rule is None:
        return Attribution(bound=None, limiter="", evidence=("no rule fits the counters that were measured",))
    evidence = [_fill(rule["says"], values)]
    if len(kernels) > 1 and values.get("time_share") is not None:
        evidence.append(f"kernel {short_name(kernels[dominant].kernel)} takes {values['time_share']:.0%} "
                        f"of the time of {len(kernels)} kernels")
    evidence += _occupancy_limit(values)
    evidence += _heaviest_stall(values)
    evidence += _mix(values)
    return Attribution(bound=rule["bound"], limiter=rule["limiter"], evidence=tuple(evidence))


def hot_lines(lines: Sequence[SourceLine], source: str, file_name: str = "cuda_source.cu") -> tuple[HotLine, ...]:
    """The lines of the candidate's own text with most stall samples, hottest first.

    Args:
        lines: All lines of the source page; those of other files (headers) count in the total only.
        source: The candidate's text, for the lines' wording.
        file_name: Last part of the path under which it was compiled.
    """
    total = sum(line.samples for line in lines)
    text = source.splitlines()
    own: Counter[int] = Counter()
    stalls: dict[int, Counter[str]] = {}
    for line in lines:
        if line.samples and line.line <= len(text) and _is_own(line, text, file_name):
            own[line.line] += line.samples  # type: ignore[assignment]
            stalls.setdefault(line.line, Counter()).update(line.stalls)
    return tuple(
        HotLine(line=number, share=samples / total, stall=_dominant(stalls[number]),
                text=text[number - 1].strip()[:160])
        for number, samples in own.most_common(HOT_LINES)
    )


def short_name(kernel: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    plain = re.sub(r"<.*|\(.*", "", kernel.removeprefix("void "))
    return plain.split("::")[-1].strip() or kernel[:60]


def _is_own(line: SourceLine, text: list[str], file_name: str) -> bool:
    if line.path:
        return line.path.replace("\\", "/").rsplit("/", 1)[-1] == file_name
    return bool(line.text) and text[line.line - 1].strip() == line.text


def _dominant(stalls: Counter[str]) -> str:
    """In words, the reason of most samples."""
    states = table()["stall"]["states"]
    by_column = {row["column"]: row["says"] for state, row in states.items() if state not in NO_STALL}
    named = {column: count for column, count in stalls.items() if column in by_column}
    return by_column[max(named, key=lambda column: named[column])] if named else ""


def _named(launch: Launch) -> dict[str, float | None]:
    """Our keys to values; stalls as shares of the stalled cycles."""
    found: dict[str, float | None] = {}
    for row in table()["metric"]:
        values = [launch.values[raw].value for raw in row["raw"] if raw in launch.values]
        found[row["key"]] = next((value for value in values if value is not None), None)
    issue = found.get("issue_per_cycle")
    if issue is not None and issue > 1.0:  # The fallback name is a percentage.
        found["issue_per_cycle"] = issue / 100
    pattern = table()["stall"]["raw"]
    cycles = {state: launch.values[name].value for state in table()["stall"]["states"] if state not in NO_STALL
              if (name := pattern.format(state=state)) in launch.values}
    total = sum(value for value in cycles.values() if value is not None)
    if total > 0:
        found |= {f"stall.{state}": None if value is None else value / total for state, value in cycles.items()}
    return found


def _derived(kernels: Sequence[Mapping[str, float | None]], dominant: int) -> dict[str, float | None]:
    values = kernels[dominant]
    durations = [k.get("duration_us") for k in kernels]
    known = [us for us in durations if us is not None]
    asked, ideal = values.get("global_sectors"), values.get("global_sectors_ideal")
    conflicts, wavefronts = values.get("bank_conflicts"), values.get("shared_wavefronts")
    pipes = [v for key in ("fma_pct", "fp64_pct", "xu_pct", "alu_pct") if (v := values.get(key)) is not None]
    local = [v for key in ("local_load_sectors", "local_store_sectors") if (v := values.get(key)) is not None]
    l1_bytes = values.get("l1_bytes")
    kinds = {key.removeprefix("inst_"): v for key in values if key.startswith("inst_") and (v := values[key])}
    mix = {f"mix.{kind}": count / sum(kinds.values()) for kind, count in kinds.items()}
    return mix | {
        "kernels": float(len(kernels)),
        "mean_kernel_us": sum(known) / len(known) if known else None,
        "waste": 1 - ideal / asked if asked and ideal is not None else None,
        "conflict_share": conflicts / wavefronts if wavefronts and conflicts is not None else None,
        "fp_pct": max(pipes) if pipes else None,
        "local_share": sum(local) * 32 / l1_bytes if l1_bytes and local else None,
    }


def _condition(text: str) -> re.Match[str] | None:
    return re.fullmatch(r"([a-z0-9_.]+) (>=|<=|>|<) (-?[\d.]+)", text)


def _holds(text: str, values: Mapping[str, float | None]) -> bool:
    match = _condition(text)
    assert match is not None
    value = values.get(match[1])
    return value is not None and COMPARE[match[2]](value, float(match[3]))


def _fill(template: str, values: Mapping[str, float | None]) -> str:
    def put(match: re.Match[str]) -> str:
        value = values.get(match[1])
        return "n/a" if value is None else format(value, match[2])

    return re.sub(r"\{([a-z0-9_.]+):([^}]*)\}", put, template)


def _occupancy_limit(values: Mapping[str, float | None]) -> list[str]:
    limits = {name: values.get(f"blocks_by_{name}") for name in ("registers", "shared_memory", "warps", "block_limit")}
    known = {name: value for name, value in limits.items() if value}
    achieved = values.get("occupancy_pct")
    if not known or achieved is None:
        return []
    name = min(known, key=lambda key: known[key] or 0.0)
    blocks = f"{known[name]:.0f} blocks a multiprocessor by {name.replace('_', ' ')}"
    return [f"achieved occupancy {achieved:.0f} %, limited to {blocks}"]


def _mix(values: Mapping[str, float | None]) -> list[str]:
    """The three commonest kinds of instruction."""
    kinds = {key.removeprefix("mix."): share for key, share in values.items() if key.startswith("mix.") and share}
    if len(kinds) < 2:
        return []
    told = sorted(kinds, key=lambda kind: -kinds[kind])[:3]
    return ["instructions: " + ", ".join(f"{kind} {kinds[kind]:.0%}" for kind in told)]


def _heaviest_stall(values: Mapping[str, float | None]) -> list[str]:
    stalls = {key.removeprefix("stall."): value for key, value in values.items()
              if key.startswith("stall.") and value is not None}
    if not stalls:
        return []
    state = max(stalls, key=lambda key: stalls[key])
    return [f"most stalled cycles ({stalls[state]:.0%}): {table()['stall']['states'][state]['says']}"]
