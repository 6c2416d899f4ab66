"""The numeric rule: a candidate's error against fp64, in units of the fp32 reference's own error.

Everything runs in chunks, so that a comparison needs well under 1 GiB besides the tensors. The
constants are the published ones of the verifier; see `LIMITS`.
"""

import copy
import math

import torch
from _hiera_worker import slabs

CHUNK = 1 << 23
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
UNIT = {torch.float64: 2.0 ** -53, torch.float32: 2.0 ** -24, torch.float16: 2.0 ** -11, torch.bfloat16: 2.0 ** -8}
# How many times the strict reference's own error a candidate may have. Zero-mean inputs separate honest
# (<= 43) from downgraded (>= 776) arithmetic; on one-sided inputs the two overlap, so the factor is looser
# there and the zero-mean families decide.
# Winograd convolutions are honest and reach 15 (rms) and 49 (largest element) of a direct one's error, so
# the largest element may have twice the factor of the rms.
MAX_FACTOR = 2.0
# Constant rows are there for 0/0 and lost constants: the exact variance is 0 there, so any honest rounding of a mean
# is a large multiple of the reference's.
LIMITS = {"zero mean": 64.0, "one sided": 256.0, "half": 8.0, "ill conditioned": 8192.0}
HARD_CAP = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 2e-2}
# A reference that comes within this factor of the cap is too uneven for it. Halves round that coarsely by themselves.
NEAR_CAP = {torch.float64: 8.0, torch.float32: 8.0, torch.float16: 2.0, torch.bfloat16: 2.0}
ALLCLOSE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
TRIVIAL_SHARE, SAME_UNITS = 0.5, 256.0
OWN_MARGIN = 8.0
# The module as configured may err twice as much. On few elements, such as running means of 32 channels, its
# measured error is one draw of a small sample: another equally exact algorithm can have several times that.
CONFIGURED_FACTOR, CONFIGURED_FACTOR_FEW, FEW_ELEMENTS = 2.0, 8.0, 4096
# Mean errors up to this many units of rounding, beside what chance gives, may have one sign in every draw.
# A sum of positive values in one long chain loses a little of each: 27 to 56 units over 32,768 squares, below 16 over
# 8,192 (measured with sequential fp32 sums).
BIAS_UNITS, BIAS_CHANCE, BIAS_CHAIN = 16.0, 8.0, 256.0


class Expected:
    """What one output must be.

    Attributes:
        dtype, real: Of the output, and of its elements or their parts: complex ones are compared as two numbers.
        exact: fp64 values (or the integers), flat. For want of memory, the strict reference's.
        strict: Errors (rms, largest) of the strict reference against `exact`; zeros without fp64.
        configured: The same of the module as configured.
        rms, largest, mean_size: Of `exact`, over elements where the reference is finite.
        spread: Root mean square of `exact` minus its mean: what a constant output would get wrong.
        blank: Mask of elements where the strict reference is not finite, or None.
        surely_blank: Mask of those that are not finite in fp64 either, or None.
        nan: Mask of its NaNs that are NaN in fp64 too, or None.
        usual: The configured reference's values, for allclose, or None.
        chain: The longest sum that may stand behind one element.
        other_integer: For integers, the fp64 run's values where they may differ, or None.
    """

    def __init__(self, exact, strict_values, configured_values, keep_usual):
        self.dtype, self.shape = strict_values.dtype, tuple(strict_values.shape)
        self.stride = tuple(strict_values.stride())
        self.real = REAL.get(self.dtype, self.dtype)
        self.is_float = self.real in UNIT
        self.blank = self.surely_blank = self.nan = self.usual = self.other_integer = None
        self.chain = 1
        self.has_double = exact is not None
        strict_values = flat(strict_values)
        self.exact = strict_values if exact is None else flat(exact)
        if not self.is_float:
            self.other_integer = self.exact if exact is not None else None
            self.exact = strict_values
            self.rms = self.largest = self.spread = self.mean_size = 0.0
            return
        self._measure(strict_values)
        usual = None if configured_values is None else flat(configured_values)
        self.configured = self.strict if usual is None else errors(usual, self)
        if keep_usual:
            self.usual = strict_values if usual is None else usual

    def _measure(self, strict_values):
        """Sizes of what is exact, and the strict reference's error; masks only where something is not finite."""
        strict = Errors()
        sizes = _finite_sizes(self.exact)
        if sizes is not None:
            self.rms, self.largest, self.mean, self.mean_size = sizes
            if self.has_double:
                # An element that is not finite in fp32 shows in the sums of differences.
                strict = _finite_errors(strict_values, self)
        if sizes is None or strict is None:
            self.blank = ~torch.isfinite(strict_values)
            self.nan = torch.isnan(strict_values)
            if self.has_double:
                # On CPUs fp32's gelu(inf) is NaN by the vector library: what fp64 finds infinite need not be NaN.
                self.nan &= torch.isnan(self.exact)
            # A fast convolution of the reference's own may have spread NaN over a whole tile, or all there is.
            self.surely_blank = self.blank & ~torch.isfinite(self.exact) if self.has_double else self.blank
            if not bool(self.blank.any()):
                self.blank = self.surely_blank = self.nan = None
            self.rms, self.largest, self.mean, self.mean_size = _size(self.exact, self.blank)
            strict = errors(strict_values, self) if self.has_double else Errors()
        self.strict = strict
        self.spread = math.sqrt(max(self.rms ** 2 - self.mean ** 2, 0.0))
        if self.spread < SAME_UNITS * UNIT[self.real] * self.rms:
            self.spread = 0.0  # Equal but for rounding: that a constant is as good says nothing.

    def allow_for(self, shaken):
        """Count what one rounding error in the inputs does to the reference as its own error.

        Constant rows before a normalisation, say: the reference may hit the exact zero by luck, and any
        other order of summation may not.
        """
        if not self.is_float or not self.has_double:
            return
        found = errors(flat(shaken), self)
        if not found.extra_nan:
            self.strict.rms = max(self.strict.rms, found.rms)
            self.strict.largest = max(self.strict.largest, found.largest)
            self.strict.near_cap += found.near_cap

    def wider(self, values):
        """The same where the module as configured also gives these flat values, in another memory format.

        Nothing more is allowed for an error that a constant output would nearly have, too: such a format says nothing.
        """
        found = errors(values, self)
        if found.extra_nan or found.rms * OWN_MARGIN >= TRIVIAL_SHARE * (self.spread or self.rms):
            return self
        made = copy.copy(self)
        made.configured = self.configured.worst(found)
        return made

    @property
    def blank_share(self):
        """Fraction of elements without a finite reference."""
        return 0.0 if self.blank is None else float(self.blank.float().mean())

    @property
    def well_conditioned(self):
        """False when the reference itself comes near the hard cap here, so that the cap proves nothing.

        In a deep network that amplifies rounding, another honest kernel has other large elements than the reference.
        """
        return self.strict.near_cap == self.configured.near_cap == 0


class Errors:
    """Sums over one output: see the attributes' names. All are absolute."""

    def __init__(self):
        self.rms = self.largest = self.mean = self.lean = 0.0
        self.count = 0
        self.over_cap = self.near_cap = self.not_close = self.missing_nan = self.extra_nan = self.poison = 0
        self.finite = 0
        self.identical = True

    def worst(self, other):
        """What bounds go by, each from whichever of the two is further off."""
        made = Errors()
        for name in ("rms", "largest", "near_cap", "mean", "lean"):
            setattr(made, name, max(getattr(self, name), getattr(other, name), key=abs))
        return made


def flat(values):
    """All elements in a row, of a complex tensor the real and imaginary parts in turn."""
    values = values.contiguous().reshape(-1)
    return torch.view_as_real(values.resolve_conj()).reshape(-1) if values.is_complex() else values


def errors(values, expected, count_poison=False):
    """Compare flat `values` with `expected`, chunk by chunk."""
    values = flat(values).to(expected.exact.device)
    result = None if expected.blank is not None else _finite_errors(values, expected)
    return _any_errors(values, expected, count_poison) if result is None else result


def _finite_sizes(values):
    """Root mean square, largest size, mean and mean size of flat `values`; None where one is not finite.

    Nothing is read back before all chunks are under way: on a GPU that costs more than the sums.
    """
    if not values.numel():
        return 0.0, 0.0, 0.0, 0.0
    found = []
    for part in values.split(CHUNK):
        part = part.double()
        found += [part.sum(), part.norm(), part.norm(1), part.norm(math.inf)]
    totals, norms, sizes, largest = _columns(found, 4)
    if not math.isfinite(sum(sizes)):
        return None
    count = values.numel()
    return (math.hypot(*norms) / math.sqrt(count), max(largest), sum(totals) / count, sum(sizes) / count)


def _finite_errors(values, expected):
    """What `errors` finds where every element is finite and no error comes near a limit; else None.

    That is what nearly every honest output looks like, and a few sums tell it.
    """
    result = Errors()
    if not values.numel():
        return result
    found = []
    for part, wanted in zip(values.split(CHUNK), expected.exact.split(CHUNK)):
        difference = part - wanted if wanted.dtype is torch.float64 else part.double() - wanted
        found += [difference.sum(), torch.dot(difference, wanted.sign().double()), difference.norm(),
                  difference.norm(math.inf)]
    totals, leans, norms, largest = _columns(found, 4)
    if not math.isfinite(sum(norms)):
        return None
    result.largest = max(largest)
    usual_off = 0.0 if expected.usual is None else max(expected.configured.largest, expected.strict.largest)
    # Smaller than the least that any element is allowed: then nothing needs to be counted.
    if (result.largest * NEAR_CAP[expected.real] > HARD_CAP[expected.real] * expected.rms
            or result.largest + usual_off > ALLCLOSE[expected.real]):
        return None
    count = values.numel()
    result.rms = math.hypot(*norms) / math.sqrt(count)
    result.mean, result.lean, result.count = sum(totals) / count, sum(leans) / count, count
    return result


def _columns(scalars, width):
    """Lists of every `width`-th of these scalars, read back at once."""
    read = torch.stack(scalars).tolist()
    return [read[start::width] for start in range(width)]


def _any_errors(values, expected, count_poison):
    result = Errors()
    count, squares, total, lean = 0, 0.0, 0.0, 0.0
    cap, close = HARD_CAP[expected.real], ALLCLOSE[expected.real]
    for start in range(0, values.numel(), CHUNK):
        part = values[start:start + CHUNK]
        wanted = expected.exact[start:start + CHUNK].double()
        if count_poison:
            result.poison += int(poisoned(part))
        bad = ~torch.isfinite(part)
        given = part.double()
        if expected.blank is not None:
            blank, nan = expected.blank[start:start + CHUNK], expected.nan[start:start + CHUNK]
            isnan = torch.isnan(part)
            result.finite += int((expected.surely_blank[start:start + CHUNK] & ~bad).sum())
            result.missing_nan += int((nan & ~isnan).sum())
            result.extra_nan += int((bad & ~blank).sum())
            keep = ~(blank | bad)
            given, wanted = given[keep], wanted[keep]
        else:
            result.extra_nan += int(bad.sum())
            if result.extra_nan:
                keep = ~bad
                given, wanted = given[keep], wanted[keep]
        if not given.numel():
            continue
        difference = given - wanted
        total += float(difference.sum())
        lean += float((difference * wanted.sign()).sum())
        difference.abs_()
        count += difference.numel()
        squares += float((difference * difference).sum())
        result.largest = max(result.largest, float(difference.max()))
        size = (wanted.abs() + expected.rms).mul_(cap)
        result.over_cap += int((difference > size).sum())
        result.near_cap += int((difference * NEAR_CAP[expected.real] > size).sum())
        if expected.usual is not None and expected.blank is None and not result.extra_nan:
            usual = expected.usual[start:start + CHUNK].double()
            result.not_close += int(((given - usual).abs() > close + close * usual.abs()).sum())
        else:
            result.not_close += int((difference > close + close * wanted.abs()).sum())
    result.rms = math.sqrt(squares / count) if count else 0.0
    result.mean, result.lean = (total / count, lean / count) if count else (0.0, 0.0)
    result.count = count
    return result


def poisoned(part):
    """How many elements still hold the poison that lay there before the call."""
    if part.dtype not in UNIT or not part.is_contiguous():
        return 0
    size = part.element_size()
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    word = slabs.POISON_WORD
    pattern = {2: word & 0xFFFF, 4: word, 8: (word << 32) | word}[size]
    return (part.view(kind) == pattern).sum()


def judge_output(values, expected, zero_mean, loose=False):
    """Verdicts on one flat output.

    Returns:
        A dict with `match`, `strict`, `kernelbench` (None where this family cannot tell), `poison`
        (count), `trivial` (no better than a constant), `why` (first reason, or empty) and numbers.
    """
    if not expected.is_float:
        count, values = 0, values.to(expected.exact.device)
        for start in range(0, values.numel(), CHUNK):
            part = slice(start, start + CHUNK)
            wrong = values[part] != expected.exact[part]
            if expected.other_integer is not None:
                wrong &= values[part] != expected.other_integer[part]
            count += int(wrong.sum())
        verdict = count == 0
        why = "" if verdict else f"{count} of {values.numel()} integer elements differ"
        return {"match": verdict, "strict": verdict, "kernelbench": verdict, "poison": 0, "trivial": False, "why": why,
                "rms_ratio": 0.0, "max_ratio": 0.0, "rms": 0.0, "missing_nan": 0, "finite": 0, "extra": 0, "bias": 0.0,
                "lean": 0.0}
    unit = UNIT[expected.real]
    found = errors(values, expected, count_poison=True)
    half = expected.real in (torch.float16, torch.bfloat16)
    kind = "ill conditioned" if loose else "half" if half else "zero mean" if zero_mean else "one sided"
    factor = LIMITS[kind]
    least = torch.finfo(expected.real).smallest_normal * 2 * unit  # The smallest number below the normal ones.
    floor_rms, floor_max = max(2 * unit * expected.rms, least), max(4 * unit * expected.largest, least)
    base_rms, base_max = max(expected.strict.rms, floor_rms), max(expected.strict.largest, floor_max)
    why = []
    if found.extra_nan:
        why.append(f"{found.extra_nan} elements are NaN or infinite where the reference is finite")
    # Only zero-mean values: sums of ramps and the like run over partial sums far larger than the result, and an
    # honest sequential sum is then off by more than the cap where a pairwise one is not. The ratio decides there.
    if zero_mean and expected.well_conditioned and found.over_cap > 0:
        why.append(f"{found.over_cap} elements are off by more than {HARD_CAP[expected.real]:g} of their size")

    def within(rms_bound, max_bound):
        return found.rms <= rms_bound and found.largest <= max_bound

    trivial = expected.spread > 0 and found.rms > TRIVIAL_SHARE * expected.spread
    own = max(expected.strict.rms, expected.configured.rms)
    if trivial and own * OWN_MARGIN < TRIVIAL_SHARE * expected.spread:
        # Deep networks amplify rounding, and a large multiple of that is as much as the output itself.
        why.append("it is no better than a constant, and the reference's own error is far smaller")
    peak = MAX_FACTOR * factor
    strict = not why and within(factor * base_rms, peak * base_max)
    allowed = CONFIGURED_FACTOR_FEW if values.numel() < FEW_ELEMENTS else CONFIGURED_FACTOR
    match = not why and within(max(factor * base_rms, allowed * expected.configured.rms),
                               max(peak * base_max, allowed * expected.configured.largest))
    if not why and not match:
        why.append(
            f"error {found.rms:.3g} (largest {found.largest:.3g}) is {_ratio(found.rms, base_rms):.3g} "
            f"({_ratio(found.largest, base_max):.3g}) times the fp32 reference's own; at most "
            f"{factor:g} ({peak:g}) is allowed")
    close = not found.extra_nan and found.not_close == 0
    return {"match": match, "strict": strict, "kernelbench": close if expected.usual is not None else None,
            "poison": found.poison, "trivial": trivial, "why": "; ".join(why),
            "rms_ratio": _ratio(found.rms, base_rms), "max_ratio": _ratio(found.largest, base_max),
            "rms": found.rms, "missing_nan": found.missing_nan, "finite": found.finite, "extra": found.extra_nan,
            **_bias(found, expected, unit)}


def _bias(found, expected, unit):
    """Signed mean errors in units of what an honest kernel may have: along the result, and by themselves."""
    if not expected.has_double or not found.count:
        return {"bias": 0.0, "lean": 0.0}
    chance = BIAS_CHANCE * max(expected.strict.rms, expected.configured.rms) / math.sqrt(found.count)

    units = BIAS_UNITS + expected.chain / BIAS_CHAIN

    def times(mine, size, *others):
        allowed = units * unit * size + chance + 2 * max(abs(other) for other in others)
        return mine / allowed if allowed > 0 else 0.0

    return {"bias": times(found.mean, expected.rms, expected.strict.mean, expected.configured.mean),
            "lean": times(found.lean, expected.mean_size, expected.strict.lean, expected.configured.lean)}


def special_why(result, expected, local, any_order, tiny=False):
    """What is wrong with the output for NaN, infinite or tiny inputs, or nothing.

    NaN in more places than the reference's is no fault: tiles of fast convolutions spread it.

    Args:
        result: What `judge_output` found.
        expected: What the output must be.
        local: No fast algorithm for this task mixes elements that the task itself does not mix.
        any_order: Equal elements may come in any order, and NaN is equal to nothing.
        tiny: The inputs are denormal: sums of them round far more than usual, and only their loss is a fault.
    """
    if not expected.is_float:
        return result["why"] if local and not any_order else ""
    if expected.blank is not None:
        count, nans = int(expected.surely_blank.sum()), int(expected.nan.sum())
        if nans and 2 * result["missing_nan"] > nans:
            return f"NaN of the input did not reach the output: {result['missing_nan']} of {nans} elements lack it"
        if 2 * result["finite"] > count:
            return f"{result['finite']} of {count} elements are finite where the reference is not"
    if tiny:
        lost = result["rms"] > TRIVIAL_SHARE * expected.rms > OWN_MARGIN * expected.strict.rms
        return "numbers below the normal ones are lost" if local and lost else ""
    if local and not result["extra"] and result["match"] is False:
        return result["why"]
    return ""


def passes_trivially(expected, other, inputs=()):
    """Names of trivial answers that the rule would let through: the task's own null test.

    Args:
        expected: What one draw must give.
        other: The same of another draw.
        inputs: The other draw's inputs, one of which might be its output.
    """
    passed = []
    for value in inputs:
        fits = value.dtype == other.dtype and tuple(value.shape) == other.shape
        if fits and judge_output(value.contiguous().reshape(-1), other, zero_mean=True)["match"]:
            passed.append("a copy of an input")
            break
    if not expected.is_float:
        same = bool((expected.exact == other.exact).all()) if expected.exact.shape == other.exact.shape else False
        return [*passed, "another seed's output"] if same else passed
    size = expected.exact.numel()
    trial = {"zeros": 0.0, "a constant": other.mean}
    for name, value in trial.items():
        values = torch.full((size,), value, dtype=expected.real, device=expected.exact.device)
        if judge_output(values, expected, zero_mean=True)["match"]:
            passed.append(name)
    if judge_output(other.exact.to(expected.real), expected, zero_mean=True)["match"]:
        passed.append("another seed's output")
    return passed


def _ratio(value, base):
    return value / base if base > 0 else (0.0 if value == 0 else float("inf"))


def _size(values, blank):
    squares, largest, total, sizes, count = 0.0, 0.0, 0.0, 0.0, 0
    for start in range(0, values.numel(), CHUNK):
        part = values[start:start + CHUNK].double()
        if blank is not None:
            part = part[~blank[start:start + CHUNK]]
        if part.numel():
            total += float(part.sum())
            squares += float((part * part).sum())
            part = part.abs()
            sizes += float(part.sum())
            largest = max(largest, float(part.max()))
            count += part.numel()
    return (math.sqrt(squares / count), largest, total / count, sizes / count) if count else (0.0, 0.0, 0.0, 0.0)
