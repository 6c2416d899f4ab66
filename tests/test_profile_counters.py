"""Nsight Compute's CSV to counters, bottleneck and hot lines. The samples follow ncu 2025.3's documented pages."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.contract import Argument, Contract, Variant
from contracts.tensors import TensorSpec
from engine.devices import target_device
from engine.evaluate import attribution, profile, sandbox
from engine.evaluate.ncu_csv import base_unit, parse_raw, parse_source, to_value
from engine.records import Build

ROW = {
    "gpu__time_duration.sum": ("ns", "41,280"),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "91.2"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "22.5"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "91.2"),
    "dram__bytes_read.sum": ("Mbyte", "67.11"),
    "dram__bytes_write.sum": ("byte", "33554432"),
    "dram__bytes.sum.per_second": ("Gbyte/s", "3,950.5"),
    "lts__t_sector_hit_rate.pct": ("%", "nan"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "78.1"),
    "launch__occupancy_limit_registers": ("block", "8"),
    "launch__occupancy_limit_warps": ("block", "16"),
    "launch__grid_size": ("", "16384"),
    "launch__waves_per_multiprocessor": ("", "15.52"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "30"),
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("inst", "10"),
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": ("inst", "1"),
    "memory_l2_theoretical_sectors_global": ("", "1000"),
    "memory_l2_theoretical_sectors_global_ideal": ("", "990"),
}


def raw_page(*rows, order=1):
    """The raw page of launches, each `(kernel, changes)`."""
    names = list(ROW)[::order]
    head = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
            "Grid Size", "Device", "CC", *names]
    lines = ["==PROF== Connected to process 41", ",".join(f'"{name}"' for name in head)]
    lines.append(",".join(['""'] * 11 + [f'"{ROW[name][0]}"' for name in names]))
    for index, (kernel, changes) in enumerate(rows):
        cells = [str(index), "41", "python3", "127.0.0.1", kernel, "1", "7", "(256, 1, 1)", "(16384, 1, 1)", "0", "9.0"]
        cells += [changes.get(name, ROW[name][1]) for name in names]
        lines.append(",".join(f'"{cell}"' for cell in cells))
    return "\n".join(lines) + "\n"


SOURCE = "// scale\n__global__ void scale(float* x) {\n  x[0] = x[1] * 2;\n  __syncthreads();\n}\n"
SOURCE_PAGE = '''"File Path","/tmp/build/ab12/cuda_source.cu"
"Function Name","scale(float *)"
"Line No","Source","Address","Source","Warp Stall Sampling (All Samples)","Warp Stall Sampling (Not-issued Samples)","# Samples","Instructions Executed","stall_barrier","stall_long_sb","stall_not_selected","stall_selected"
"2","__global__ void scale(float* x) {","","","0","0","0","10","0","0","0","0"
"3","  x[0] = x[1] * 2;","","","75","70","75","20","5","40","60","3"
"3","","0x7f00","LDG.E R2, [R4.64]","75","70","75","20","5","40","60","3"
"4","  __syncthreads();","","","15","15","15","5","15","0","0","0"
"","","0x7f10","BAR.SYNC","15","15","15","5","15","0","0","0"

"File Path","/usr/local/cuda/include/cuda_fp16.hpp"
"Function Name","scale(float *)"
"Line No","Source","Address","Source","Warp Stall Sampling (All Samples)","stall_math"
"3","asm volatile","","","10","10"
'''


def metrics(kernel):
    return {metric.name: metric for metric in kernel.metrics}


@pytest.mark.parametrize("order", [1, -1])
def test_raw_page_in_any_column_order(order):
    (launch,) = parse_raw(raw_page(("scale(float *)", {}), order=order))
    assert launch.kernel == "scale(float *)"
    assert launch.values["gpu__time_duration.sum"].value == pytest.approx(41.28)
    assert launch.values["dram__bytes_read.sum"].value == pytest.approx(67.11e6)
    assert launch.values["dram__bytes.sum.per_second"].value == pytest.approx(3.9505e12)


def test_long_form_is_read_too():
    text = ('"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
            '"0","1","k()","gpu__time_duration.sum","usecond","41.28"\n'
            '"0","1","k()","dram__bytes_read.sum","Kbyte","640"\n'
            '"1","1","k()","gpu__time_duration.sum","usecond","2"\n')
    first, second = parse_raw(text)
    assert first.values["gpu__time_duration.sum"].value == 41.28
    assert first.values["dram__bytes_read.sum"].value == 640_000
    assert second.index == 1


@pytest.mark.parametrize(("cell", "value"), [("1,234.5", 1234.5), ("nan", None), ("n/a", None), ("", None),
                                             ("inf", None), ("12.5 (3; 4)", 12.5)])
def test_cells(cell, value):
    assert to_value(cell, "").value == value


@pytest.mark.parametrize(("unit", "factor", "base"), [("Mbyte", 1e6, "byte"), ("Gbyte/second", 1e9, "byte/s"),
                                                      ("byte/nsecond", 1e9, "byte/s"), ("msecond", 1e3, "us"),
                                                      ("ns", 1e-3, "us"), ("%", 1, "%"), ("inst/cycle", 1, "inst/cycle"),
                                                      ("register/thread", 1, "register/thread"), ("Ghz", 1e9, "hz")])
def test_units(unit, factor, base):
    assert base_unit(unit) == (factor, base)


def test_no_table_is_no_launch():
    assert parse_raw("==WARNING== No kernels were profiled.\n") == ()


def test_nan_is_left_out_not_zero():
    (kernel,) = attribution.kernel_counters(parse_raw(raw_page(("k", {}))))
    assert metrics(kernel)["l2_hit_pct"].value is None
    assert metrics(kernel)["dram_pct"].value == 91.2
    assert metrics(kernel)["duration_us"].unit == "us"


def test_stalls_are_shares_without_ready_warps():
    (kernel,) = attribution.kernel_counters(parse_raw(raw_page(("k", {}))))
    assert metrics(kernel)["stall.long_scoreboard"].value == pytest.approx(0.75)
    assert "stall.selected" not in metrics(kernel)


def attributed(*rows):
    return attribution.attribute(attribution.kernel_counters(parse_raw(raw_page(*rows))))


def test_bandwidth_bound_kernel():
    found = attributed(("scale(float *)", {}))
    assert (found.bound, found.limiter) == ("memory", "dram-bandwidth")
    assert found.evidence[0] == "DRAM bandwidth 91 % of its peak"
    assert "limited to 8 blocks a multiprocessor by registers" in found.evidence[1]


LOW = {"gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "20",
       "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "20"}
BARRIER = "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
MEMORY = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
CASES = [
    ("uncoalesced", "memory", {"memory_l2_theoretical_sectors_global_ideal": "125"}),
    ("memory-latency", "latency", LOW),
    ("barrier", "latency", {**LOW, BARRIER: "90"}),
    ("occupancy", "latency", {**LOW, MEMORY: "0", BARRIER: "0", "launch__waves_per_multiprocessor": "0.1"}),
    ("occupancy", "latency", {**LOW, "sm__warps_active.avg.pct_of_peak_sustained_active": "12"}),
    ("launch", "latency", {**LOW, "gpu__time_duration.sum": "2100"}),
]


@pytest.mark.parametrize(("limiter", "bound", "changes"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_limiters(limiter, bound, changes):
    found = attributed(("k", changes))
    assert (found.bound, found.limiter) == (bound, limiter)


def test_many_small_kernels_are_launch_bound_and_the_dominant_one_is_named():
    tiny = {"gpu__time_duration.sum": "2000"}
    found = attributed(*[("void ns::tiny<int>(float *)", tiny)] * 3, ("big(float *)", {"gpu__time_duration.sum": "4000"}))
    assert found.limiter == "launch"
    assert "kernel big takes 40% of the time of 4 kernels" in found.evidence


def test_what_a_profile_must_hold_is_asked_for():
    keys = {row["key"] for row in attribution.table()["metric"]}
    wanted = {
        "speed of light": {"memory_pct", "sm_pct"}, "throughput": {"dram_pct", "l2_pct", "l1_pct", "dram_bytes_per_s"},
        "occupancy": {"occupancy_pct", "occupancy_limit_pct", "blocks_by_registers", "blocks_by_shared_memory",
                      "blocks_by_warps", "blocks_by_block_limit"},
        "mix": {f"inst_{kind}" for kind in ("fp32", "fp64", "fp16", "integer", "conversion", "memory", "control")},
        "tensor pipe": {"tensor_pct"}, "conflicts": {"bank_conflicts", "shared_wavefronts"},
        "sectors": {"load_sectors_per_request", "store_sectors_per_request"},
        "spills": {"local_load_sectors", "local_store_sectors"},
    }
    assert {name: names - keys for name, names in wanted.items() if names - keys} == {}
    assert {"long_scoreboard", "barrier", "mio_throttle"} <= set(attribution.table()["stall"]["states"])
    assert all(row["meaning"] for row in attribution.table()["metric"])
    sections = set(attribution.table()["sections"])
    assert {"SpeedOfLight", "Occupancy", "WarpStateStats", "SourceCounters"} <= sections


def test_the_documented_metrics_are_the_ones_that_are_asked_for():
    page = (Path(__file__).parent.parent / "docs" / "profiling.md").read_text()
    for row in attribution.table()["metric"]:
        assert f"| `{row['key']}` |" in page, f"{row['key']} is missing in docs/profiling.md"
        assert row["raw"][0] in page
    for rule in attribution.table()["rule"]:
        assert f"`{rule['limiter']}`" in page


MIX = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"


def test_the_instruction_mix_is_told_in_shares():
    (launch,) = parse_raw(raw_page(("k", {})))
    counts = {"fp32": 500.0, "integer": 300.0, "memory": 150.0, "control": 50.0}
    values = {**launch.values, **{MIX.format(kind): to_value(str(count), "inst") for kind, count in counts.items()}}
    found = attribution.attribute(attribution.kernel_counters([replace(launch, values=values)]))
    assert "instructions: fp32 50%, integer 30%, memory 15%" in found.evidence


def test_every_limiter_the_planner_knows_has_a_rule():
    codes = {rule["limiter"] for rule in attribution.table()["rule"]}
    assert {"launch", "divergence", "occupancy", "memory-latency", "barrier", "dram-bandwidth", "uncoalesced",
            "l2-bandwidth", "shared-memory", "fp-pipe", "tensor-pipe", "issue"} <= codes


def test_hot_lines_count_each_line_once_and_ignore_headers():
    lines = attribution.hot_lines(parse_source(SOURCE_PAGE), SOURCE)
    assert [(line.line, round(line.share, 3)) for line in lines] == [(3, 0.75), (4, 0.15)]
    assert lines[0].text == "x[0] = x[1] * 2;"
    assert lines[0].stall == "waiting for global or local memory"
    assert lines[1].stall == "waiting at a block barrier"


# --- the run itself, with a stand-in for ncu ------------------------------------------------------

H200 = replace(target_device("H200"), kind="cuda")
SPEC = TensorSpec.contiguous("float32", (4, 8))
CONTRACT = Contract(
    name="scale", entry="scale_forward", output_tree=0,
    arguments=(Argument(name="x", role="input", tensor=SPEC), Argument(name="v", role="buffer", tensor=SPEC),
               Argument(name="alpha", role="attribute", value=2.0)),
    variants=(Variant(name="example", tensors={"x": SPEC, "v": SPEC}, outputs=(SPEC,)),),
)
BUILD = Build(seconds=1.0, tier="light", extension="/nowhere/bind.so", module="bind")
FAKE = '''#!{python}
import sys
args = sys.argv[1:]
if "--version" in args:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 1)"); sys.exit()
if "--import" in args:
    page = "source" if "source" in args else "raw"
    sys.stdout.write(open({folder!r} + "/" + page + ".txt").read()); sys.exit()
open({folder!r} + "/command.txt", "a").write(" ".join(args) + "\\n")
{behaviour}
open(args[args.index("--export") + 1] + ".ncu-rep", "w").write("report")
'''


@pytest.fixture(autouse=True)
def no_sandbox(monkeypatch):
    """The stand-in writes beside itself."""
    monkeypatch.setattr(profile, "_may_be_shut_in", set())


SHUT_IN = """
import os
outside = {outside!r}
try:
    open(outside, "w").write("x")
except OSError:
    pass
if {only_without} and not os.path.exists({probe!r}):
    print("==ERROR== Failed to initialize the profiler: LibraryNotLoaded"); sys.exit(1)
"""


@pytest.mark.parametrize("only_without", [False, True])
async def test_ncu_is_shut_in_where_it_works_so(ncu, tmp_path, monkeypatch, only_without):
    works, why = await sandbox.candidate_sandbox(cuda=True)
    if not works:
        pytest.skip(f"bubblewrap does not work on this machine: {why}")
    monkeypatch.setattr(profile, "_may_be_shut_in", {"yes"})
    probe = tmp_path / "hidden" / "file"  # Behind the /tmp that the sandbox hides.
    probe.parent.mkdir()
    probe.write_text("")
    outside = tmp_path / "outside"
    tool = tmp_path / "tool"
    tool.mkdir()
    toolchain = ncu(SHUT_IN.format(outside=str(outside), only_without=only_without, probe=str(probe)))
    text = Path(toolchain.ncu).read_text().replace(f'open({str(tmp_path)!r} + "/command.txt", "a")', 'open("/dev/null", "a")')
    toolchain.ncu = str(tool / "ncu")
    Path(toolchain.ncu).write_text(text)
    Path(toolchain.ncu).chmod(0o755)
    counters = await run(toolchain)
    assert counters.status == "measured"
    assert outside.exists() == only_without
    assert bool(profile._may_be_shut_in) != only_without


@pytest.fixture
def ncu(tmp_path):
    """Make a toolchain whose ncu behaves as told."""

    def make(behaviour="", raw=None, source=SOURCE_PAGE):
        tool = tmp_path / "ncu"
        tool.write_text(FAKE.format(python=sys.executable, folder=str(tmp_path), behaviour=behaviour))
        tool.chmod(0o755)
        (tmp_path / "raw.txt").write_text(raw if raw is not None else raw_page(("scale(float *)", {})))
        (tmp_path / "source.txt").write_text(source)
        return SimpleNamespace(python=sys.executable, ncu=str(tool))

    return make


async def run(toolchain, **changes):
    options = {"contract": CONTRACT, "build": BUILD, "source": SOURCE, "device": H200, "timeout_s": 10, **changes}
    return await profile.profile(toolchain, **options)


async def test_a_measured_call(ncu, tmp_path):
    counters = await run(ncu(), raw_dir=tmp_path / "kept")
    assert counters.status == "measured"
    assert counters.tool == "2025.3.1.0"
    assert (counters.bound, counters.limiter) == ("memory", "dram-bandwidth")
    assert counters.kernels[0].launch_index == 0
    assert counters.lines[0].line == 3
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {"raw.csv", "source.csv", "ncu.log", "report.ncu-rep", "launch.json"} <= kept
    command = (tmp_path / "command.txt").read_text()
    assert "--clock-control none --profile-from-start off" in command


TROUBLE = [
    ('print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"); sys.exit(1)', "ERR_NVGPUCTRPERM"),
    ('print("==ERROR== Failed to initialize the profiler: LibraryNotLoaded"); sys.exit(1)', "LibraryNotLoaded"),
    ('print("==WARNING== No kernels were profiled."); sys.exit(0)', "no kernel was captured; filter: kernels between"),
    ('print(\'{"ok": false, "problem": "RuntimeError: out of memory"}\'); sys.exit(3)', "out of memory"),
    ("sys.exit(5)", "ncu ended with status 5"),
    ('print("==ERROR== Another instance of a profiler is active"); sys.exit(1)', "another profiler holds"),
    ('print("==ERROR== The application returned an error code (11)."); sys.exit(11)', "error code (11)"),
    ('sys.stderr.write("error while loading shared libraries: libcuda.so.1"); sys.exit(127)', "libcuda.so.1"),
    ("import time; time.sleep(60)", "did not finish within 1 s"),
]


@pytest.mark.parametrize(("behaviour", "reason"), TROUBLE, ids=[reason for _, reason in TROUBLE])
async def test_trouble_is_told(ncu, behaviour, reason):
    counters = await run(ncu(behaviour), timeout_s=1)
    assert counters.status.startswith("not measured: ")
    assert reason in counters.status
    assert counters.kernels == ()
    assert counters.bound is None


async def test_an_empty_capture_with_a_graph_says_so(ncu):
    toolchain = ncu('print("==WARNING== No kernels were profiled."); sys.exit(0)')
    assert "CUDA graph" in (await run(toolchain, source="cudaGraphLaunch(graph, stream);")).status


async def test_a_graph_that_was_measured_says_how(ncu):
    counters = await run(ncu(raw=raw_page(("scale(float *)", {}), ("add(float *)", {}))),
                         source="cudaGraphLaunch(graph, stream);")
    assert counters.status == "measured"
    assert len(counters.kernels) == 2
    assert any("CUDA graph: its kernels were measured one by one" in sentence for sentence in counters.evidence)


async def test_several_kernels_are_each_told_and_a_cut_is_said(ncu):
    rows = [(f"step{number}(float *)", {"gpu__time_duration.sum": str(1000 * (number + 1))})
            for number in range(profile.MAX_LAUNCHES)]
    counters = await run(ncu(raw=raw_page(*rows)))
    assert [k.kernel for k in counters.kernels] == [name for name, _ in rows]
    assert sum(metrics(k)["time_share"].value for k in counters.kernels) == pytest.approx(1.0)
    assert f"only the first {profile.MAX_LAUNCHES} kernels of the call were measured" in counters.evidence


async def test_counters_that_are_partly_nan_are_left_out_and_counted(ncu):
    gaps = dict.fromkeys(list(ROW)[3:9], "nan")
    counters = await run(ncu(raw=raw_page(("k", gaps))))
    assert counters.status == "measured"
    assert metrics(counters.kernels[0])["dram_pct"].value is None
    assert metrics(counters.kernels[0])["duration_us"].value == pytest.approx(41.28)
    assert any("counters were n/a and are left out" in sentence for sentence in counters.evidence)


async def test_a_source_page_that_cannot_be_read_costs_only_the_lines(ncu):
    counters = await run(ncu(source="==ERROR== no source counters in this report\n"))
    assert counters.status == "measured"
    assert counters.lines == ()


async def test_a_report_without_kernels_or_numbers_is_no_success(ncu):
    assert "no kernel was captured" in (await run(ncu(raw="==PROF==\n"))).status
    empty = raw_page(("k", dict.fromkeys(ROW, "nan")))
    assert "no number for any counter" in (await run(ncu(raw=empty))).status


async def test_an_unknown_metric_costs_only_itself(ncu, tmp_path):
    name = attribution.extra_metrics()[0]
    toolchain = ncu(f'if {name!r} in " ".join(args): print("==ERROR== Failed to find metric {name}"); sys.exit(1)')
    counters = await run(toolchain)
    assert counters.status == "measured"
    first, second = (tmp_path / "command.txt").read_text().splitlines()
    assert name in first
    assert name not in second


async def test_no_gpu_no_ncu_no_build(ncu, monkeypatch):
    assert "no GPU" in (await run(ncu(), device=target_device())).status
    assert "not built" in (await run(ncu(), build=replace(BUILD, extension=None))).status
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(profile, "NCU_PLACES", ())
    assert "not installed" in (await run(SimpleNamespace(python=sys.executable, ncu=None))).status


def test_the_launchers_spec_is_in_contract_order():
    spec = profile.launch_spec(CONTRACT, BUILD, H200)
    assert [a.get("value") or a["tensor"]["shape"] for a in spec["arguments"]] == [[4, 8], [4, 8], 2.0]
    assert json.loads(json.dumps(spec)) == spec
    assert spec["arguments"][1]["positive"]


def test_the_launcher_answers_one_json_line(tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({**profile.launch_spec(CONTRACT, BUILD, H200)}))
    done = subprocess.run([sys.executable, str(profile.LAUNCH), str(spec)], capture_output=True, text=True, timeout=60)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 3
    assert not answer["ok"]
    assert answer["problem"]


def test_the_launcher_keeps_the_bytecode_of_a_torch_that_came_without(tmp_path):
    torch = tmp_path / "site" / "torch" / "__init__.py"
    torch.parent.mkdir(parents=True)
    torch.write_text("__version__ = '0'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n")
    (tmp_path / "spec.json").write_text(json.dumps({**profile.launch_spec(CONTRACT, BUILD, H200)}))
    kept = tmp_path / "bytecode"
    done = subprocess.run(
        [sys.executable, str(profile.LAUNCH), str(tmp_path / "spec.json")], capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(torch.parent.parent), "HIERA_BYTECODE": str(kept)})
    assert "sees no GPU" in json.loads(done.stdout.splitlines()[-1])["problem"]
    assert [path.parent.name for path in kept.rglob("__init__*.pyc")] == ["torch"]
    assert not (torch.parent / "__pycache__").exists()


def test_the_launcher_finds_the_loader_without_shadowing_user_modules():
    code = ("import runpy, sys; launch = runpy.run_path(sys.argv[1]);"
            "print(callable(launch['_load_package']().load_extension), launch['FOLDER'] in sys.path)")
    done = subprocess.run([sys.executable, "-c", code, str(profile.LAUNCH)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True False"


def test_the_launcher_makes_every_layout(monkeypatch):
    torch = pytest.importorskip("torch")
    import importlib.util

    module_spec = importlib.util.spec_from_file_location("launch", Path(profile.LAUNCH))
    launch = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(launch)
    for dtype in ("float32", "bfloat16", "float64", "int64", "int8", "uint8", "bool", "complex64"):
        layout = {"dtype": dtype, "shape": [4, 3, 5], "stride": [1, 0, 4]}
        tensor = launch.make_argument(torch, {"tensor": layout, "low": 2, "high": 6}, device="cpu")
        assert list(tensor.stride()) == [1, 0, 4]
        assert list(tensor.shape) == [4, 3, 5]
        if dtype.startswith(("int", "uint")):
            assert tensor.min() >= 2
            assert tensor.max() <= 6
    assert launch.make_argument(torch, {"value": 0.5}, device="cpu") == 0.5
