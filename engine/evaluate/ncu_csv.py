"""Nsight Compute's CSV pages to plain values. Knows the format, not what the numbers mean.

Seen forms: the raw page is one header row, one row of units, then one row a launch. The source page
is a block for every function and file (`File Path`, `Function Name`), a header that starts with
`Line No` and holds `Source` twice, then a row for each CUDA line (the sum of its instructions), each
followed by rows for its instructions. Column order and surrounding `==PROF==` lines may vary.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

# To base units: byte, second-based ones to us, and plain numbers.
PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
TIME_US = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3, "second": 1e6, "s": 1e6}


@dataclass(frozen=True, slots=True)
class Value:
    """One number in base units; None where the tool gave none, `n/a` or NaN."""

    value: float | None
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One row of the raw page."""

    index: int
    kernel: str
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """Stall samples of one line of one file."""

    path: str
    line: int
    text: str
    samples: float
    stalls: Mapping[str, float]


def parse_raw(text: str) -> tuple[Launch, ...]:
    """The launches of `--page raw --csv`, in order. Empty when there is no table."""
    rows = [row for row in csv.reader(io.StringIO(text)) if len(row) > 1]
    start = next((i for i, row in enumerate(rows) if "Kernel Name" in row), None)
    if start is None:
        return ()
    header = [name.strip() for name in rows[start]]
    if "Metric Name" in header:
        return _parse_long(header, rows[start + 1:])
    kernel = header.index("Kernel Name")
    units = [""] * len(header)
    launches: list[Launch] = []
    for row in rows[start + 1:]:
        if len(row) < len(header) // 2:
            continue
        cells = row + [""] * (len(header) - len(row))
        if not cells[kernel].strip():
            units = cells
            continue
        values = {name: to_value(cell, unit) for name, cell, unit in zip(header, cells, units, strict=False)
                  if "__" in name or "sectors" in name}
        launches.append(Launch(index=len(launches), kernel=cells[kernel], values=values))
    return tuple(launches)


def _parse_long(header: list[str], rows: list[list[str]]) -> tuple[Launch, ...]:
    """One row a launch and metric: what `ncu --metrics --csv` prints without an import."""
    at = {name: i for i, name in enumerate(header)}
    found: dict[str, tuple[str, dict[str, Value]]] = {}
    for row in rows:
        if len(row) < len(header):
            continue
        key = row[at["ID"]] if "ID" in at else row[at["Kernel Name"]]
        _, values = found.setdefault(key, (row[at["Kernel Name"]], {}))
        values[row[at["Metric Name"]]] = to_value(row[at["Metric Value"]], row[at["Metric Unit"]])
    return tuple(Launch(index=i, kernel=name, values=values) for i, (name, values) in enumerate(found.values()))


def parse_source(text: str) -> tuple[SourceLine, ...]:
    """The CUDA lines of `--page source --print-source cuda,sass --csv` that have samples or text."""
    lines: list[SourceLine] = []
    path, header = "", []
    for row in csv.reader(io.StringIO(text)):
        if not row:
            continue
        first = row[0].strip()
        if first in ("File Path", "Function Name", "Kernel Name") and len(row) > 1 and "Source" not in row:
            path = row[1].strip() if first == "File Path" else path
            header = []
        elif "Source" in row and ("Line No" in row or "Address" in row or "#" in row):
            header = [name.strip() for name in row]
        elif header and ("Line No" in header or (path and "#" in header)):
            line = _source_line(path, header, row)
            if line is not None:
                lines.append(line)
    return tuple(lines)


def _source_line(path: str, header: list[str], row: list[str]) -> SourceLine | None:
    at = header.index("Line No" if "Line No" in header else "#")
    number = row[at].strip() if len(row) > at else ""
    if not number.isdigit() or int(number) == 0:
        return None  # An instruction, or code without a line.
    if "Address" in header and len(row) > header.index("Address") and row[header.index("Address")].strip():
        return None  # An instruction that repeats its line's number.
    cells: dict[str, str] = {}
    for name, cell in zip(header, row, strict=False):
        cells.setdefault(name, cell)  # `Source` is there twice: the first is the CUDA text.
    samples = next((to_value(cell, "").value for name, cell in cells.items() if _is_all_samples(name)), None)
    stalls = {name: value for name, cell in cells.items()
              if re.fullmatch(r"stall_[a-z_]+", name) and not name.endswith("not_issued")
              and (value := to_value(cell, "").value)}
    return SourceLine(path=path, line=int(number), text=cells.get("Source", "").strip(),
                      samples=samples or 0.0, stalls=stalls)


def _is_all_samples(name: str) -> bool:
    plain = name.lower()
    return plain in ("# samples", "samples", "sampling data (all)") or ("sampl" in plain and "all" in plain)


def to_value(cell: str, unit: str) -> Value:
    """A cell and its unit as a number in base units: bytes, us, and no thousands separators."""
    number = _number(cell)
    factor, base = base_unit(unit.strip())
    return Value(None if number is None else number * factor, base)


def base_unit(unit: str) -> tuple[float, str]:
    """The factor to base units, and their name: `Mbyte/second` gives 1e6 and `byte/s`."""
    if unit in TIME_US:
        return TIME_US[unit], "us"
    head, slash, tail = unit.partition("/")
    match = re.fullmatch(r"([kKMGT]?)(byte|B|inst|sector|request|cycle|warp|block|thread|register|hz|Hz)s?", head)
    factor, base = (PREFIXES[match[1]], match[2]) if match else (1.0, head)
    base = "byte" if base == "B" else base
    if not slash:
        return factor, base
    per = {"second": (1.0, "s"), "s": (1.0, "s"), "nsecond": (1e9, "s"), "ns": (1e9, "s"),
           "usecond": (1e6, "s"), "us": (1e6, "s"), "msecond": (1e3, "s"), "ms": (1e3, "s")}.get(tail, (1.0, tail))
    return factor * per[0], f"{base}/{per[1]}"


def _number(cell: str) -> float | None:
    # A value with instances is written `12.5 (3; 4; 5)`.
    plain = cell.strip().split(" (")[0].replace(",", "").replace("\u202f", "").replace("\u00a0", "")
    try:
        value = float(plain)
    except ValueError:
        return None
    return value if math.isfinite(value) else None

