"""The same module at sizes that a CPU can emulate.

Numbers in the user's text that set sizes are made smaller, first all by one factor (which keeps their
relations), then one at a time. Every trial runs the edited text on fake tensors and counts operations.
"""

import importlib.util
import os
import sys
import time

import torch
from _hiera_worker import probe, probe_fake, probe_inputs, probe_knobs, probe_load
from _hiera_worker.probe_fake import fake, whole_recurrent_layers
from _hiera_worker.wire import Refusal
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# The emulator does about 0.2 GFLOP/s; a verification makes several calls.
WANTED_FLOPS, WANTED_BYTES = 5e7, 3.2e7
ALLOWED_FLOPS, ALLOWED_BYTES = 4e9, 1.5e9
SEARCH_CPU_S, SEARCH_S = 20.0, 60.0
FLOORS = (16, 8, 4, 2)
# Very small sizes leave little to test, so they are used only while the score (1 is as wanted) is above this.
ENOUGH = {16: 1, 8: 4, 4: 20, 2: 20}


def reduce(request, emit):
    """Find smaller sizes, and describe the call there as `extract` does, with the edits that make it."""
    search = Search(request, emit)
    best = search.run()
    if best is None:
        return {"reason": search.reason}
    subject = search.subject(best)
    problem = _real_problem(subject)
    if problem:
        return {"reason": f"at smaller sizes the module does not run: {problem}"}
    found = probe.describe(subject, {**request, "free_dims_s": 2.0})
    edits, script_edits = search.edits(best)
    pieces = list(dict.fromkeys(f"{k.label}: {k.value} becomes {v}" for k, v in best.items() if v != k.value))
    changed = ", ".join(pieces[:8]) + (f" and {len(pieces) - 8} more" if len(pieces) > 8 else "")
    return {**found, "edits": edits, "script_edits": script_edits, "reason": "",
            "changed": changed or "the sizes are small already"}


class Search:
    """State of one search. An assignment maps every knob to a value."""

    def __init__(self, request, emit):
        self.request, self.emit = request, emit
        self.original = probe.open_subject(request, emit)
        self.place = self.original.place
        self.script_path = os.path.abspath(request["script"]) if request.get("script") else None
        self.texts = {self.place.path: _read(self.place.path)}
        if self.script_path and self.script_path != self.place.path:
            self.texts[self.script_path] = _read(self.script_path)
        self.reason = ""
        self.names = _state_names(self.original.callee)
        self.seen = {}
        self.cpu_end = time.process_time() + SEARCH_CPU_S
        self.end = time.monotonic() + SEARCH_S

    def run(self):
        """The best assignment within the limits, or None and a reason."""
        best = {k: k.value for k in self._knobs(deep=False)}, self._cost(self.original)
        for deep in (False, True):
            if _score(best[1]) <= 1 or (deep and _allowed(best[1])):
                break
            if deep:
                known = {(k.path, k.start): v for k, v in best[0].items()}
                best = {k: known.get((k.path, k.start), k.value) for k in self._knobs(deep=True)}, best[1]
            best = self._uniform(best, [k for k in best[0] if not deep or (k.path, k.start) not in known])
            if _score(best[1]) > ENOUGH[FLOORS[1]]:
                effects = self._effects(best)
                best = self._uniform(best, [k for k, effect in effects.items() if effect < 0.97])
                best = self._one_by_one(best, sorted(effects, key=lambda k: effects[k]))
        if not _allowed(best[1]):
            flops, size = best[1]
            self.reason = (
                f"the smallest sizes found still take {flops / 1e9:.1f} GFLOP and {size / 1e6:.0f} MB; "
                "numbers that set sizes are looked for in module-level assignments and in get_inputs()"
            )
            return None
        return best[0]

    def _knobs(self, deep):
        found = []
        for path, text in self.texts.items():
            for knob in probe_knobs.find(text, self.request["name"], self.request.get("function"), deep,
                                         defaults=self.original.init is None):
                knob.path = path
                found.append(knob)
        return [k for k in found if k.value > FLOORS[-1]]

    def _over(self):
        # CPU time, so that a busy machine finds the same sizes; wall time, because someone waits.
        return time.process_time() > self.cpu_end or time.monotonic() > self.end

    def _uniform(self, best, knobs):
        """All `knobs` over one factor: relations between sizes stay."""
        values, cost = best
        start = dict(values)
        for floor in FLOORS[:3]:
            failures, factor = 0, 2
            while factor <= 1 << 20 and failures < 3 and _score(cost) > ENOUGH[floor] and not self._over():
                trial = {k: _scaled(v, factor, floor) if k in knobs else v for k, v in start.items()}
                factor *= 2
                found = self._try(trial)
                if found is None:
                    failures += 1
                elif _score(found) < _score(cost):
                    values, cost, failures = trial, found, 0
            if _score(cost) <= ENOUGH[floor] or values == start:
                break
        return values, cost

    def _effects(self, best):
        """For every knob, the score at half its value over the score now; 1 where that does not run."""
        values, cost = best
        found = {}
        for knob, value in values.items():
            smaller = None if self._over() else self._try({**values, knob: _scaled(value, 2, FLOORS[-1])})
            found[knob] = 1.0 if smaller is None else _score(smaller) / _score(cost)
        return found

    def _one_by_one(self, best, order):
        """Each knob by itself, or with those of the same value, as far down as it runs."""
        values, cost = best
        for floor in FLOORS:
            for knob in order:
                if _score(cost) <= ENOUGH[floor] or self._over():
                    break
                # Knobs of one value often belong together (two inputs of one size).
                for group in ([knob], [k for k in values if k.value == knob.value]):
                    better = self._shrunk(values, cost, group, floor)
                    if better is not None:
                        values, cost = better
                        break
        return values, cost

    def _shrunk(self, values, cost, group, floor):
        factor = 1 << 12
        while factor >= 2 and not self._over():
            small = _scaled(values[group[0]], factor, floor)
            factor //= 4
            if small < values[group[0]]:
                trial = {**values, **dict.fromkeys(group, small)}
                found = self._try(trial)
                if found is not None and _score(found) < 0.95 * _score(cost):
                    return trial, found
        return None

    def _try(self, values):
        key = (len(values), *values.values())
        if key not in self.seen:
            try:
                subject = self.subject(values)
                self.seen[key] = self._cost(subject) if _state_names(subject.callee) == self.names else None
            except Exception:
                self.seen[key] = None
        return self.seen[key]

    def subject(self, values):
        """The module and its inputs built from the edited text."""
        edits, script_edits = self.edits(values)
        module = self._execute(self.place.path, edits, self.original.module.__name__)
        target = probe_load.find(module, self.request["name"], self.place.path)
        script = None
        if self.script_path == self.place.path:
            script = module
        elif self.script_path:
            script = self._execute(self.script_path, script_edits, "_user_script_reduced")
        if script is not None and self.request.get("function"):
            script = probe.One(getattr(script, self.request["function"]), getattr(script, "get_init_inputs", None))
        return probe.subject_of(module, target, script, self.place)

    def edits(self, values):
        """Edits of the file and of the script, as contracts.groundtruth takes them."""
        found = {self.place.path: [], self.script_path: []}
        for knob, value in values.items():
            if value != knob.value:
                found[knob.path].append([knob.start, knob.end, str(value)])
        same = self.script_path in (None, self.place.path)
        return found[self.place.path], [] if same else found[self.script_path]

    def _execute(self, path, edits, name):
        text = self.texts[path]
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
        before = sys.modules.get(name)
        sys.modules[name] = module
        try:
            exec(compile(text, path, "exec"), module.__dict__)
        finally:
            if before is not None:
                sys.modules[name] = before
        return module

    def _cost(self, subject):
        """FLOPs, and bytes of all values and weights."""
        example = subject.examples[0]
        counter = Counter()
        probe_fake.recurrent_flops[0] = 0
        with whole_recurrent_layers(), fake(subject.mode), counter:
            subject.callee(*example.args, **example.kwargs)
        size = sum(v.numel() * v.element_size() for _, v in example.leaves if isinstance(v, torch.Tensor))
        if isinstance(subject.callee, torch.nn.Module):
            state = [*subject.callee.parameters(), *subject.callee.buffers()]
            size += sum(t.numel() * t.element_size() for t in state)
        return counter.flops + probe_fake.recurrent_flops[0], size + counter.bytes


class Counter(TorchDispatchMode):
    """Counts FLOPs of known operators, one for every element of the others, and bytes of all results."""

    def __init__(self):
        super().__init__()
        self.flops = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        values = [v for v in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(v, torch.Tensor)]
        packet = getattr(func, "_overloadpacket", None)
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=out)
        elif values and not getattr(func, "is_view", False):
            self.flops += max([v.numel() for v in values] + [a.numel() for a in args if isinstance(a, torch.Tensor)])
        if not getattr(func, "is_view", False):
            self.bytes += sum(v.numel() * v.element_size() for v in values)
        return out


def _scaled(value, factor, floor):
    """`value` over `factor`, not under `floor`; an odd number stays odd, so ragged edges stay ragged."""
    if value <= floor:
        return value
    small = max(floor, value // factor)
    if value % 2 and small % 2 == 0:
        small += 1
    return min(small, value)


def _score(cost):
    return float("inf") if cost is None else max(cost[0] / WANTED_FLOPS, cost[1] / WANTED_BYTES)


def _allowed(cost):
    return cost is not None and cost[0] <= ALLOWED_FLOPS and cost[1] <= ALLOWED_BYTES


def _state_names(callee):
    if not isinstance(callee, torch.nn.Module):
        return []
    return [name for name, _ in callee.named_parameters()] + [name for name, _ in callee.named_buffers()]


def _real_problem(subject):
    """What a run on real memory says against these sizes (an index out of range, an empty result), or empty."""
    get_inputs = subject.get_inputs
    if get_inputs is None:
        return ""
    try:
        real, _ = probe_inputs.build(subject.target, subject.init, None, subject.place)
        examples = probe_inputs.examples(real, get_inputs, None, None, subject.place)
        with fake(None):
            out = real(*examples[0].args, **examples[0].kwargs)
    except Refusal as refusal:
        return refusal.problem
    except Exception as error:
        return probe_load.said(error)
    tensors = [t for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
    if any(t.numel() == 0 for t in tensors):
        return "a result is empty"
    return ""


def _read(path):
    with open(path, encoding="utf-8-sig") as stream:
        return stream.read()
