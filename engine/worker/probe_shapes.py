"""Which input dimensions can change, found by running the call on fake tensors of other sizes."""

import time

import torch
from _hiera_worker.probe_fake import fake, whole_recurrent_layers
from torch.utils import _pytree as pytree

GROWTH = (1, 3)  # A dimension is free when it may grow by each of these, so multiples are no accident.


def free_dimensions(subject, budget_s):
    """Groups of (input path, dimension) that can change together, and notes. Stops after `budget_s` seconds."""
    example = subject.examples[0]
    tensors = [(path, value) for path, value in example.leaves if isinstance(value, torch.Tensor)]
    dims = [(path, dim) for path, value in tensors for dim in range(value.dim()) if value.stride(dim) != 0]
    sizes = {(path, dim): value.shape[dim] for path, value in tensors for dim in range(value.dim())}
    end = time.monotonic() + budget_s
    free, taken = [], set()
    for key in dims:
        if key in taken:
            continue
        if time.monotonic() > end:
            return free, ["free dimensions were not all searched, for lack of time"]
        group = [key]
        if not _works(subject, example, group):
            # Batch dimensions of several inputs change together.
            group = [k for k in dims if k not in taken and sizes[k] == sizes[key] and (k[0] != key[0] or k == key)]
            same_place = [k for k in group if k[1] == key[1]]
            group = next((g for g in (same_place, group) if len(g) > 1 and _works(subject, example, g)), [])
        if group:
            free.append(group)
            taken.update(group)
    return free, []


def _works(subject, example, group):
    return all(_runs(subject, example, dict.fromkeys(group, growth)) for growth in GROWTH)


def _runs(subject, example, growth):
    flat, spec = pytree.tree_flatten((example.args, example.kwargs))
    with whole_recurrent_layers(), fake(subject.mode):
        changed = []
        for (path, _), value in zip(example.leaves, flat):
            if isinstance(value, torch.Tensor):
                shape = [n + growth.get((path, dim), 0) for dim, n in enumerate(value.shape)]
                value = torch.empty(shape, dtype=value.dtype) if shape != list(value.shape) else value
            changed.append(value)
        args, kwargs = pytree.tree_unflatten(changed, spec)
        try:
            subject.callee(*args, **kwargs)
        except Exception:
            return False
    return True
