"""Runs generated kernels on the CPU: exports a graph, writes its regions, compiles them for the emulator, calls them.

Nodes that no region covers are evaluated with torch, so whole modules can be checked.
"""

from __future__ import annotations

import ctypes
import hashlib
import operator
import re
import subprocess
import tempfile
from pathlib import Path

import torch

from contracts.graph import Const, Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.codegen.helpers import helper_text
from engine.codegen.naming import RESERVED
from engine.codegen.regions import Region, plan_regions, schedule
from engine.evaluate.cuda_to_host import transform
from engine.records import Device

torch.set_num_threads(1)
H200 = Device(kind="none", name="NVIDIA H200", sm="9.0", sm_count=132, l2_bytes=60 << 20,
              copy_bytes_per_s=4.3e12, shared_bytes_per_block=232448)
_DECLARED = re.compile(r"\b(?:int|bool|float|double|u?int\d+_t|\w+<[^;\n]*>) (?:const )?(\w+)(?= ?[=\[;,)({])")
EMULATOR = Path(__file__).parents[1] / "engine" / "runtime" / "emulator"


def spec_of(t: torch.Tensor) -> TensorSpec:
    return TensorSpec(dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape), stride=tuple(t.stride()))


def export_graph(module, inputs) -> tuple[Graph, list[str], torch.export.ExportedProgram]:
    """The operator graph of a module or function, and the state paths behind its first inputs."""
    if not isinstance(module, torch.nn.Module):
        function = module

        class Wrapper(torch.nn.Module):
            def forward(self, *args):
                return function(*args)

        module = Wrapper().eval()
    program = torch.export.export(module, tuple(inputs), strict=False).run_decompositions({})
    values: dict[str, TensorSpec] = {}
    nodes: list[Node] = []
    tuples: dict[str, list[str | None]] = {}
    names: list[str] = []
    for n in program.graph.nodes:
        meta = n.meta.get("val")
        if n.op == "placeholder":
            names.append(n.name)
            values[n.name] = spec_of(meta)
        elif n.op == "call_function" and n.target is operator.getitem:
            values[n.name] = spec_of(meta)
        elif n.op == "call_function":
            if isinstance(meta, torch.Tensor):
                outputs: list[str | None] = [n.name]
                values[n.name] = spec_of(meta)
            else:
                outputs = [None] * (len(meta) if meta is not None else 0)
                for user in n.users:
                    if user.target is operator.getitem:
                        outputs[user.args[1]] = user.name
                tuples[n.name] = outputs
            args = {}
            for position, argument in enumerate(n.target._schema.arguments):
                if position < len(n.args):
                    value = n.args[position]
                else:
                    value = n.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None)
                args[argument.name] = _argument(value)
            nodes.append(Node(name=n.name, op=str(n.target), args=args, outputs=tuple(outputs)))
    signature = program.graph_signature
    count = len(signature.buffers_to_mutate)
    results = next(n for n in program.graph.nodes if n.op == "output").args[0]
    mutations = {}
    for name, target in signature.buffers_to_mutate.items():
        path = {v: k for k, v in signature.inputs_to_buffers.items()}[target]
        mutations[path] = name
    outputs_ = tuple(Ref(r.name) if isinstance(r, torch.fx.Node) else r for r in results[count:])
    graph = Graph(inputs=tuple(names), nodes=tuple(nodes), outputs=outputs_, mutations=mutations, values=values)
    state = {**dict(program.state_dict), **program.constants}
    lifted = {**signature.inputs_to_parameters, **signature.inputs_to_buffers,
              **signature.inputs_to_lifted_tensor_constants}
    return graph, [state[lifted[n]] for n in names if n in lifted], program


def _argument(value):
    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, torch.dtype):
        return Const("dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.memory_format):
        return Const("memory_format", str(value).removeprefix("torch."))
    if isinstance(value, torch.layout):
        return Const("layout", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return Const("device", str(value))
    if isinstance(value, (list, tuple)):
        return tuple(_argument(v) for v in value)
    return value


def cuda_text(codes) -> str:
    helpers = set().union(*(code.helpers for code in codes)) if codes else set()
    return "\n".join(["#include <cuda_fp16.h>", "#include <cuda_bf16.h>", "#include <cooperative_groups.h>",
                      "#include <cuda_pipeline.h>", "#include <cstdint>", "#include <cmath>",
                      "namespace {", helper_text(helpers), *(code.device_code for code in codes), "}"])


def compile_cubin(text: str) -> str:
    """Real nvcc; gives ptxas' report."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "k.cu"
        source.write_text(text.replace("namespace {", "", 1).rstrip().removesuffix("}"))
        done = subprocess.run(["nvcc", "-arch=sm_90", "-cubin", "-Xptxas=-v", "-std=c++17", "-o", f"{folder}/k.cubin",
                               str(source)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr


class Compiled:
    """The regions of one graph, ready to run on CPU tensors."""

    def __init__(self, graph: Graph, regions: tuple[Region, ...], layouts=None, choices=None) -> None:
        self.graph, self.regions = graph, regions
        self.layouts = dict(graph.values) | dict(layouts or {})
        codes, wrappers = [], []
        self.specs = {}
        for region in regions:
            specs = region.output_specs({k: v for k, v in self.layouts.items() if k in region.inputs})
            self.specs |= specs
            self.layouts |= specs
            names = {v: f"t_{v}" for v in (*region.inputs, *region.outputs)}
            code = region.emit(names, layouts=self.layouts, choices=choices or {}, device=H200)
            codes.append(code)
            for kernel in code.kernels:
                unasked = set(_DECLARED.findall(kernel.text)) - kernel.identifiers - RESERVED
                assert not unasked, f"{kernel.name} declares {unasked}, which a tensor may be called: {kernel.text}"
            args = [*region.inputs, *region.outputs, *(t.name for t in code.temporaries)]
            lines = [f'extern "C" __attribute__((visibility("default"))) void run_{region.name}(void** p) {{',
                     "    cudaStream_t stream = nullptr; (void)stream;"]
            for position, value in enumerate(args):
                lines.append(f"    Tensor {names.get(value, value)}{{p[{position}]}};")
            lines += ["    " + line for line in code.host_code] + ["}"]
            wrappers.append("\n".join(lines))
        self.codes = codes
        self.text = cuda_text(codes)
        source = ("#include <math.h>\n#include <hiera_emu/all.h>\nstruct Tensor { void* p; void* data_ptr() const { return p; } };\n"
                  + transform(self.text + "\n" + "\n".join(wrappers)))
        self.library = _build(source) if regions else None

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        env = dict(zip(self.graph.inputs, tensors, strict=True))
        for item in schedule(self.graph, self.regions):
            if isinstance(item, Node):
                self._extern(item, env)
            else:
                self._run(item, env)
        self.env = env
        return [env[o.name] if isinstance(o, Ref) else o for o in self.graph.outputs]

    def _run(self, region, env) -> None:
        code = self.codes[self.regions.index(region)]
        keep = []
        for value in region.inputs:
            assert spec_of(env[value]).shape == self.layouts[value].shape
            want = self.layouts[value].stride
            if any(n > 1 and a != b for n, a, b in zip(env[value].shape, env[value].stride(), want, strict=True)):
                fresh = torch.empty_strided(env[value].shape, want, dtype=env[value].dtype)
                fresh.copy_(env[value])
                env[value] = fresh
        for value in region.outputs:
            spec = self.layouts[value]
            t = torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype))
            env[value] = t.fill_(float("nan")) if t.dtype.is_floating_point else t.fill_(77 if t.dtype != torch.bool else 1)
        for temporary in code.temporaries:
            keep.append(torch.empty(temporary.numel, dtype=getattr(torch, temporary.dtype)))
            if keep[-1].dtype.is_floating_point:
                keep[-1].fill_(float("nan"))
        pointers = [env[v].data_ptr() for v in (*region.inputs, *region.outputs)] + [t.data_ptr() for t in keep]
        getattr(self.library, f"run_{region.name}")((ctypes.c_void_p * len(pointers))(*pointers))

    def _extern(self, node, env) -> None:
        def real(a):
            if isinstance(a, Ref):
                return env[a.name]
            if isinstance(a, Const):
                return torch.device(a.value) if a.kind == "device" else getattr(torch, a.value)
            return [real(x) for x in a] if isinstance(a, tuple) else a

        overload = operator.attrgetter(node.op)(torch.ops)
        schema = overload._schema.arguments
        args = [real(node.args[s.name]) for s in schema if not s.kwarg_only]
        kwargs = {s.name: real(node.args[s.name]) for s in schema if s.kwarg_only}
        out = overload(*args, **kwargs)
        out = out if isinstance(out, (tuple, list)) else (out,)
        for name, value in zip(node.outputs, out, strict=False):
            if name is not None:
                env[name] = value


def _build(source: str) -> ctypes.CDLL:
    digest = hashlib.sha1(source.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "hiera_codegen_tests"
    folder.mkdir(exist_ok=True)
    library = folder / f"{digest}.so"
    if not library.exists():
        cpp = folder / f"{digest}.cpp"
        cpp.write_text(source)
        done = subprocess.run(["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-ffp-contract=fast",
                               f"-I{include_folder()}", str(cpp), "-o", str(library) + ".part"],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000] + source
        Path(str(library) + ".part").rename(library)
    return ctypes.CDLL(str(library))


def include_folder() -> Path:
    """The emulator's headers."""
    return EMULATOR / "include" if (EMULATOR / "include").exists() else EMULATOR


def compiled(module, inputs, *, fuse=True, choices=None):
    """Export, plan and compile; gives the runner and the leading state tensors."""
    graph, state, program = export_graph(module, inputs)
    regions = plan_regions(graph, choices={"fuse": fuse} if not fuse else {}, device=H200)
    return Compiled(graph, regions, choices=choices), state, program


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(dtype, 0.0)


def assert_close(got: torch.Tensor, want: torch.Tensor, label: str = "") -> None:
    assert got.dtype == want.dtype, (label, got.dtype, want.dtype)
    assert got.shape == want.shape, (label, got.shape, want.shape)
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want), (label, got.flatten()[:8], want.flatten()[:8])
        return
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance(want.dtype), atol=tolerance(want.dtype),
                               equal_nan=True, msg=lambda m: f"{label}: {m}")


def check(module, inputs, *, fuse=True, choices=None, everything_fused=True):
    """Kernels agree with torch."""
    run, state, _ = compiled(module, inputs, fuse=fuse, choices=choices)
    got = run(*state, *inputs)
    want = module(*inputs)
    want = list(want) if isinstance(want, (tuple, list)) else [want]
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_close(a, b, f"output {position}")
    if everything_fused:
        from engine.codegen.regions import extern_nodes

        left = [n.op for n in extern_nodes(run.graph, run.regions)]
        assert not left, left
    return run
