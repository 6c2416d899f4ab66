"""One changed element: what a kernel that keeps earlier results must notice, whatever it looks at.

Each change starts from the values as they were drawn, so that an earlier one never hides a later one, and the judge
says whether the earlier outputs would still pass: a change that the task itself does not show proves nothing.
"""

import torch

EDGE = 64
AMOUNTS = (3.0, -3.0, 64.0, -64.0)
TRIES = 64


def change(tensor, found, where, generator, *, confined=False):
    """Change one element, or let two trade places, in place.

    Args:
        tensor: The argument.
        found: Its `judge_inputs.Profile`: what values it may have.
        where: `inside`, `last`, `swap` or `anywhere`.
        generator: On the CPU.
        confined: The new value is one that the example could have had.

    Returns:
        (place, earlier value) pairs for `undo`; empty where no other value is possible.
    """
    if tensor.numel() == 0:
        return []
    if where == "swap":
        return _swap(tensor, generator)
    place = _place(tensor.shape, _index(tensor.numel(), where, generator))
    old = tensor[place].clone()
    new = _other(old, found, where, generator, confined)
    if new is None:
        return []
    tensor[place] = new
    return [(place, old)]


def undo(tensor, changed):
    """Put back what `change` changed."""
    for place, old in reversed(changed):
        tensor[place] = old


def _index(count, where, generator):
    if where == "last":
        return count - 1
    edge = min(EDGE, count // 4) if where == "inside" else 0
    return edge + _random(count - 2 * edge, generator)


def _swap(tensor, generator):
    count = tensor.numel()
    for _ in range(TRIES):
        one, other = (_place(tensor.shape, _index(count, "inside", generator)) for _ in range(2))
        first, second = tensor[one].clone(), tensor[other].clone()
        if bool(first != second):
            tensor[one], tensor[other] = second, first
            # Elements of an expanded tensor may be one and the same.
            if bool(tensor[one] == second) and bool(tensor[other] == first):
                return [(one, first), (other, second)]
            tensor[one] = first
    return []


def _other(old, found, where, generator, confined):
    if old.dtype is torch.bool:
        return ~old
    if found.kind == "integer":
        low, high = int(found.low), int(found.high)
        if high <= low:
            return None
        value = low + _random(high - low, generator)
        return value + (value >= int(old))
    if found.kind == "few values":
        values = [v for v in found.values if v != float(old)]
        return values[_random(len(values), generator)]
    if confined:
        share = float(torch.rand((), generator=generator))
        return torch.full_like(old, found.low + share * (found.high - found.low))
    # The last one so much that a sum over millions shows whether it was read.
    amount = AMOUNTS[2] if where == "last" else AMOUNTS[_random(len(AMOUNTS), generator)]
    if found.low >= 0 and found.kind != "normal" and float(old.real) + amount < 0:
        amount = -amount
    return old + torch.tensor(amount, dtype=old.dtype, device=old.device)


def _place(shape, index):
    place = []
    for size in reversed(shape):
        place.append(index % size)
        index //= size
    return tuple(reversed(place))


def _random(count, generator):
    return int(torch.randint(0, max(count, 1), (), generator=generator))
