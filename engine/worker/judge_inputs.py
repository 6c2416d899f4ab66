"""Secret inputs: what the judge fills the contract's arguments with, family by family.

A family is a name and a rule that fills one tensor in place. Integer tensors keep to the range the
contract or the example shows, tensors of few distinct values (labels, masks) keep to those values;
everything else takes the family's values whatever the example looked like.
"""

import torch

FAMILIES = ("randn", "example", "randn small", "half zeros", "needle", "integers", "randn large", "shifted",
            "far below zero", "large mean", "zero rows", "ties", "ramp", "constant rows", "not a number", "infinite",
            "minus infinity", "denormal")
NOT_FINITE = frozenset({"not a number", "infinite", "minus infinity"})
SAMPLE, CHUNK = 1 << 16, 1 << 23
FEW_VALUES = 8


class Profile:
    """What one example tensor looks like, so that other shapes and seeds can look alike."""

    def __init__(self, kind, low=0.0, high=0.0, values=None, mean=0.0, std=1.0):
        self.kind, self.low, self.high, self.values, self.mean, self.std = kind, low, high, values, mean, std


def profile(tensor, low=None, high=None):
    """Describe an example tensor. `low` and `high` are the contract's range for integers."""
    if tensor.dtype is torch.bool:
        return Profile("bool", mean=float(tensor.float().mean()) if tensor.numel() else 0.5)
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        if low is None:
            low, high = (int(tensor.min()), int(tensor.max())) if tensor.numel() else (0, 0)
        return Profile("integer", low=low, high=high)
    if tensor.dtype.is_complex or tensor.numel() == 0:
        return Profile("normal")
    flat = tensor.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLE)].double()
    distinct = torch.unique(sample)
    if tensor.numel() >= 32 and 1 < distinct.numel() <= FEW_VALUES and bool(torch.isfinite(distinct).all()):
        return Profile("few values", values=distinct.tolist())
    low, high = float(sample.min()), float(sample.max())
    mean, std = float(sample.mean()), float(sample.std()) if sample.numel() > 1 else 0.0
    shape = "uniform" if std > 0 and (high - low) < 4.2 * std else "normal"
    return Profile(shape, low=low, high=high, mean=mean, std=std)


def fill(tensor, family, found, generator, role, fan_in=1, position=0, carrying=False):
    """Write one argument in place.

    Args:
        tensor: The argument, of any layout without overlaps.
        family: One of `FAMILIES`.
        found: Its `Profile`.
        generator: Seeded on the tensor's device.
        role: `input`, `parameter` or `buffer`. Parameters and buffers stay at a size that keeps a
            deep module's values finite, whatever the inputs do.
        fan_in: Elements of a parameter that feed one output.
        position: Index among the arguments of its role.
        carrying: Draw weights so large that what flows through many layers keeps its size (He et al. 2015), instead
            of as large as the example's.
    """
    if family == "ramp" and role == "input" and found.kind in ("normal", "uniform") and not tensor.dtype.is_complex:
        _ramp(tensor, generator)
        return
    for part in _parts(tensor):
        _fill_part(part, family, found, generator, role, fan_in, position, tensor.dim(), carrying)


def _parts(tensor):
    """Pieces of at most `CHUNK` elements: tensors can be as large as the memory, and temporary ones must not be."""
    if tensor.numel() <= CHUNK:
        if tensor.numel():
            yield tensor
        return
    for part in tensor.split(max(1, CHUNK * tensor.shape[0] // tensor.numel())):
        if part.numel() > CHUNK:
            yield from _parts(part[0])
        else:
            yield part


def _fill_part(tensor, family, found, generator, role, fan_in, position, dims, carrying):
    if found.kind == "bool":
        tensor.copy_(_uniform(tensor, generator) < min(max(found.mean, 0.1), 0.9))
    elif found.kind == "integer":
        _integers(tensor, int(found.low), int(found.high), generator)
    elif found.kind == "few values":
        values = torch.tensor(found.values, dtype=tensor.dtype, device=tensor.device)
        pick = torch.randint(0, len(found.values), tensor.shape, generator=generator, device=tensor.device)
        tensor.copy_(values[pick])
    elif tensor.dtype.is_complex:
        tensor.copy_(torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=tensor.dtype))
    elif role == "input":
        _INPUT[family](tensor, found, generator, position)
    else:
        _parameter(tensor, family, found, generator, role, fan_in, dims, carrying)


def _parameter(tensor, family, found, generator, role, fan_in, dims, carrying):
    if role == "buffer" and found.low >= 0:
        # Running variances and the like: a positive example stays positive.
        tensor.uniform_(0.5, 1.5, generator=generator)
        return
    if family == "integers":
        keep = min(1.0, 512.0 / max(fan_in, 1))
        signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device) * 2 - 1
        tensor.copy_(signs * (_uniform(tensor, generator) < keep))
        return
    if dims >= 2:
        # What initialisers give, but never a special value.
        usual = max(found.std, 1e-3) if 1e-4 < found.std < 4 else fan_in ** -0.5
        tensor.normal_(0.0, max(usual, (2 / fan_in) ** 0.5) if carrying else usual, generator=generator)
    elif found.std < 1e-6 and abs(found.mean - 1) < 1e-6:
        # A scale that starts as all ones must not stay so: skipping it would go unseen.
        tensor.uniform_(0.5, 1.5, generator=generator)
        signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device) * 2 - 1
        tensor.mul_(signs)
    else:
        tensor.normal_(found.mean, max(found.std, 0.2), generator=generator)


def _randn(scale):
    def draw(tensor, _found, generator, _position):
        tensor.normal_(0.0, scale, generator=generator)

    return draw


def _example(tensor, found, generator, _position):
    if found.std == 0 and found.low == found.high:
        tensor.fill_(found.low)
    elif found.kind == "uniform":
        tensor.uniform_(found.low, max(found.high, found.low + 1e-6), generator=generator)
    else:
        tensor.normal_(found.mean, max(found.std, 1e-6), generator=generator)


def _half_zeros(tensor, _found, generator, _position):
    tensor.uniform_(-1.0, 1.0, generator=generator)
    tensor.mul_(_uniform(tensor, generator) < 0.5)


def _needle(tensor, _found, generator, _position):
    tensor.normal_(0.0, 1e-2, generator=generator)
    if tensor.dim() == 0:
        return
    # One large element a row, at a random column.
    size = 1e4 if tensor.dtype in (torch.float32, torch.float64) else 1e2
    rows = tensor.shape[:-1]
    column = torch.randint(0, tensor.shape[-1], (*rows, 1), generator=generator, device=tensor.device)
    signs = torch.randint(0, 2, column.shape, generator=generator, device=tensor.device) * 2 - 1
    tensor.scatter_(-1, column, (signs * size).to(tensor.dtype))


def _exact(tensor, _found, generator, position):
    if position:  # The second factor of a product: few signs, so that every sum stays exact.
        keep = min(1.0, 512.0 / max(tensor.shape[-1] if tensor.dim() else 1, 1))
        signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device) * 2 - 1
        tensor.copy_(signs * (_uniform(tensor, generator) < keep))
        return
    high = {torch.float16: 16, torch.bfloat16: 16}.get(tensor.dtype, 4096)
    tensor.copy_(torch.randint(-high, high, tensor.shape, generator=generator, device=tensor.device) * 2 + 1)


def _shifted(mean):
    def draw(tensor, _found, generator, _position):
        tensor.normal_(mean, 1.0, generator=generator)

    return draw


def _ties(tensor, _found, generator, _position):
    tensor.copy_(torch.randint(-2, 3, tensor.shape, generator=generator, device=tensor.device))


def _ramp(tensor, generator):
    # Every element differs from its neighbours and from its place in other tiles.
    count = tensor.numel()
    start = int(torch.randint(0, max(count, 1), (1,), generator=generator, device=tensor.device).item())
    for part in _parts(tensor):
        flat = torch.arange(start, start + part.numel(), device=tensor.device, dtype=torch.int64).remainder_(count)
        part.copy_(flat.to(torch.float32).div_(count / 4.0).sub_(2.0).view(part.shape))
        start += part.numel()


def _constant_rows(tensor, _found, generator, _position):
    if tensor.dim() == 0:
        tensor.normal_(0.0, 1.0, generator=generator)
        return
    # Variance zero along the last dimension: what a naive variance or an uncarried maximum gets wrong.
    rows = torch.randn((*tensor.shape[:-1], 1), generator=generator, device=tensor.device)
    tensor.copy_(rows.expand(tensor.shape))


def _zero_rows(tensor, _found, generator, _position):
    # Norms, means and maxima of nothing: what divides by them must do as the reference does.
    tensor.normal_(0.0, 1.0, generator=generator)
    if tensor.dim() == 1:
        tensor[: tensor.shape[0] // 3] = 0.0
    elif tensor.dim():
        zero = _uniform(tensor[..., :1], generator) < 0.3
        zero[(0,) * tensor.dim()] = True
        tensor.mul_(~zero)


def _marked(*values):
    """A few elements of `values` in turn, the last one among them."""
    def draw(tensor, _found, generator, _position):
        tensor.normal_(0.0, 1.0, generator=generator)
        flat = tensor.view(-1) if tensor.is_contiguous() else None
        if flat is None:
            tensor[(0,) * tensor.dim()] = values[0]
            return
        index = torch.randint(0, flat.numel(), (min(4, flat.numel()),), generator=generator, device=flat.device)
        marks = torch.tensor([values[i % len(values)] for i in range(index.numel())], dtype=flat.dtype)
        flat[index] = marks.to(flat.device)
        flat[-1] = values[0]

    return draw


def _denormal(tensor, _found, generator, _position):
    tensor.normal_(0.0, 1.0, generator=generator)
    tensor.mul_(torch.finfo(tensor.dtype).smallest_normal * 2.0 ** -4)


def _integers(tensor, low, high, generator):
    tensor.copy_(torch.randint(low, high + 1, tensor.shape, generator=generator, device=tensor.device))


def _uniform(tensor, generator):
    return torch.rand(tensor.shape, generator=generator, device=tensor.device)


_INPUT = {
    "randn": _randn(1.0), "randn small": _randn(1e-3), "randn large": _randn(1e2), "example": _example,
    "half zeros": _half_zeros, "needle": _needle, "integers": _exact, "shifted": _shifted(100.0),
    "far below zero": _shifted(-200.0), "large mean": _shifted(3000.0), "zero rows": _zero_rows, "ties": _ties,
    "constant rows": _constant_rows, "not a number": _marked(float("nan")),
    "infinite": _marked(float("inf"), float("-inf")), "minus infinity": _marked(float("-inf")), "denormal": _denormal,
}
