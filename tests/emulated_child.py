"""Runs emulated extensions in a process with torch on the CPU, one JSON request a line.

A request is {"extension", "module", "case", "index", "env"}; the reply has `error` (largest absolute difference to
torch), or `raised`. With `values` true the result's elements come back instead of being compared.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812

torch.set_num_threads(1)
torch.manual_seed(0)


def _elementwise(x, y):
    flat = x.flatten()
    functions = [F.gelu(flat), F.softplus(flat, threshold=1000), torch.sigmoid(flat), torch.rsqrt(flat * flat + 1)]
    return torch.stack(functions)[torch.arange(flat.numel()) % 4, torch.arange(flat.numel())].view_as(x) + y


def _atomics(x, y):
    counts = torch.bincount(x.flatten(), minlength=64).double()
    return torch.cat([counts, x.max().double()[None], y.double().sum()[None], y.max().double()[None]])


def _warp_lanes(x, _):
    lane = torch.arange(32)
    rows = [
        x[torch.where(lane >= 3, lane - 3, lane)],
        x[torch.where(lane % 16 + 5 < 16, lane + 5, lane)],
        x[lane ^ 9],
        x[lane // 8 * 8 + 2],
        (x > 0).sum().expand(32),
        (2 * (x > -100).all() + (x > 100).any()).expand(32),
        torch.full((32,), 496.0),
        torch.where(lane < 30, 5, 2),
        x[torch.where(lane < 16, lane ^ 1, lane ^ 2)],
        x.double().sum().expand(32),
        torch.full((32,), 63.0),
        torch.full((32,), 384.0),
    ]
    return torch.stack([row.float() for row in rows])


def _half_arithmetic(x, y):
    fused = torch.addcmul(x.double(), x.double(), y.double()).float()
    return (fused.half() * torch.tensor(0.5).half()).float().bfloat16()


def _aten(x, y):
    h = F.linear(x, y)
    return F.leaky_relu(F.layer_norm(h.softmax(-1), [h.size(-1)]) + h.mean(-1, keepdim=True), 0.1)


def _cublas(x, y):
    rounded = x.bfloat16().float() @ y.bfloat16().float()
    # Column-major a^T a of a row-major a is, read by rows, a a^T.
    return torch.stack([(x @ y).relu(), x @ x.T, y @ y.T, rounded])


def _stencil(x, y):
    return F.conv2d(x[None, None], y[None, None], padding=2)[0, 0]


REFERENCES = {
    "elementwise": _elementwise,
    "row_sum": lambda x, y: (x * y).sum(-1),
    "cluster_softmax": lambda x, y: (x + y).softmax(-1),
    "softmax": lambda x, y: (x.float() + y.float()).softmax(-1).to(x.dtype),
    "matmul_tiled": lambda x, y: x @ y,
    "stencil": _stencil,
    "transpose": lambda x, _: x.transpose(1, 2).contiguous(),
    "atomics": _atomics,
    "warp_lanes": _warp_lanes,
    "wmma": lambda x, y: 2 * (x.float() @ y.float()),
    "half_arithmetic": _half_arithmetic,
    "cublas": _cublas,
    "cublaslt": lambda x, y: (x @ y + y[0]).relu(),
    "aten": _aten,
    "host_checks": lambda x, y: x + y,
}


def _inputs(case):
    r = torch.randn
    pairs = {
        "elementwise": [(r(1000, 33), r(1000, 33)), (r(7), r(7))],
        "row_sum": [(r(40, 1000), r(40, 1000)), (r(3, 77).double(), r(3, 77).double())],
        "softmax": [(t(r(9, 300)), t(r(9, 300))) for t in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)],
        "cluster_softmax": [(r(5, 1001), r(5, 1001)), (r(2, 3), r(2, 3))],
        "matmul_tiled": [(r(50, 70), r(70, 33)), (r(64, 64), r(64, 64))],
        "stencil": [(r(50, 70).double(), r(5, 5).double())],
        "transpose": [(r(3, 40, 65), r(1))],
        "atomics": [(torch.randint(0, 64, (1000,)), r(1000))],
        "warp_lanes": [(r(32), r(1))],
        "wmma": [(r(32, 48).half(), r(48, 64).half())],
        "half_arithmetic": [(r(50, 4).bfloat16(), r(50, 4).bfloat16())],
        "cublas": [(r(24, 24), r(24, 24))],
        "cublaslt": [(r(10, 20), r(20, 30))],
        "aten": [(r(8, 16), r(12, 16))],
        "host_checks": [(r(5000), r(5000))],
    }
    return pairs.get(case, [(torch.arange(512.0), torch.zeros(1))])


def _load(path, name):
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.machinery.ModuleSpec(name, loader, origin=path)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _serve(request, loaded):
    key = request["extension"]
    if key not in loaded:
        loaded[key] = _load(request["extension"], request["module"])
    x, y = _inputs(request["case"])[request["index"]]
    os.environ.update(request["env"])
    try:
        result = loaded[key].forward(x, y)
    except RuntimeError as error:
        return {"raised": str(error)}
    finally:
        for name in request["env"]:
            del os.environ[name]
    if request.get("values"):
        return {"values": [repr(v) for v in result.flatten().tolist()]}
    expected = REFERENCES[request["case"]](x, y)
    same = result.shape == expected.shape and result.dtype == expected.dtype
    error = (result.double() - expected.double()).abs().max().item() if same else None
    return {"error": error, "shape": [list(result.shape), list(expected.shape)], "finite": bool(result.isfinite().all())}


def main():
    """Answer until stdin ends."""
    loaded = {}
    for line in sys.stdin:
        print(json.dumps(_serve(json.loads(line), loaded)), flush=True)


if __name__ == "__main__":
    main()
