"""Integer index expressions over loop variables, kept in one simplified form.

An `Index` is `constant + sum(coefficient * atom)`; atoms are loop variables, floor divisions, remainders and
values read at run time. Equal expressions built in different ways compare equal in the cases that views make
(`(i // 4) * 4 + i % 4` is `i`), so kernels can ask "is this the same element?" and "is this contiguous?".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod


class _Hashed:
    """Remembers its hash: expressions are keys of every cache here, and each holds a tree of others."""

    __slots__ = ("_hash",)

    def _fields(self) -> tuple[object, ...]:
        raise NotImplementedError

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(self._fields()))
            return self._hash


@dataclass(frozen=True, slots=True)
class Var(_Hashed):
    """A loop variable with values 0 to size - 1."""

    name: str
    size: int

    __hash__ = _Hashed.__hash__

    def _fields(self) -> tuple[object, ...]:
        return (self.name, self.size)


@dataclass(frozen=True, slots=True)
class Opaque(_Hashed):
    """An integer that the kernel computes or loads, `low` to `high`; `depends` names loop variables behind it."""

    name: str
    low: int
    high: int
    depends: frozenset[str] = frozenset()

    __hash__ = _Hashed.__hash__

    def _fields(self) -> tuple[object, ...]:
        return (self.name, self.low, self.high, self.depends)


@dataclass(frozen=True, slots=True)
class Quotient(_Hashed):
    """`numerator // divisor`, numerator never negative."""

    numerator: Index
    divisor: int

    __hash__ = _Hashed.__hash__

    def _fields(self) -> tuple[object, ...]:
        return ("/", self.numerator, self.divisor)


@dataclass(frozen=True, slots=True)
class Remainder(_Hashed):
    """`numerator % divisor`, numerator never negative."""

    numerator: Index
    divisor: int

    __hash__ = _Hashed.__hash__

    def _fields(self) -> tuple[object, ...]:
        return ("%", self.numerator, self.divisor)


Atom = Var | Opaque | Quotient | Remainder


@dataclass(frozen=True, slots=True)
class Index(_Hashed):
    """`constant` plus terms; build with the functions below, which keep the form simplified."""

    constant: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    __hash__ = _Hashed.__hash__

    def _fields(self) -> tuple[object, ...]:
        return (self.constant, self.terms)

    def __add__(self, other: Index | int) -> Index:
        other = as_index(other)
        if not other.terms:
            return Index(self.constant + other.constant, self.terms) if other.constant else self
        if not self.terms:
            return Index(self.constant + other.constant, other.terms) if self.constant else other
        return _sum(self.constant + other.constant, (*self.terms, *other.terms))

    __radd__ = __add__

    def __sub__(self, other: Index | int) -> Index:
        return self + as_index(other) * -1

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return Index()
        return Index(self.constant * factor, tuple((atom, c * factor) for atom, c in self.terms))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Index:
        return _floordiv(self, divisor)

    def __mod__(self, divisor: int) -> Index:
        return _mod(self, divisor)

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest possible value (bounds, not always reached)."""
        return _range(self)

    def variables(self) -> frozenset[str]:
        """Names of the loop variables it depends on."""
        return _variables(self)

    def coefficient(self, name: str) -> int:
        """Factor of the plain loop variable `name` (0 if it occurs not at all or only inside a division)."""
        return sum(c for atom, c in self.terms if isinstance(atom, Var) and atom.name == name)

    def without(self, name: str) -> Index:
        """The expression with the plain terms of `name` left out."""
        kept = tuple((a, c) for a, c in self.terms if not (isinstance(a, Var) and a.name == name))
        return Index(self.constant, kept)

    def substitute(self, values: Mapping[str, Index]) -> Index:
        """Replace loop variables by expressions."""
        if not values or not (self.variables() & values.keys()):
            return self
        total = Index(self.constant)
        for atom, factor in self.terms:
            total = total + _substitute(atom, values) * factor
        return total

    def divisible(self, factor: int) -> bool:
        """True when every term is a multiple of `factor`."""
        return self.constant % factor == 0 and all(c % factor == 0 for _, c in self.terms)

    def __str__(self) -> str:
        return to_cpp(self)


def as_index(value: Index | int) -> Index:
    """An `Index` of a number or of itself."""
    return Index(value) if isinstance(value, int) else value


def variable(name: str, size: int) -> Index:
    """A loop variable; a variable with one value is the constant 0."""
    return Index() if size == 1 else Index(0, ((Var(name, size), 1),))


def opaque(name: str, low: int, high: int, depends: frozenset[str] = frozenset()) -> Index:
    """A run-time integer known by the C++ expression `name`."""
    return Index(low) if low == high else Index(0, ((Opaque(name, low, high, depends), 1),))


def linear(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """Row-major position of `index` in `shape`."""
    total = Index()
    for value, size in zip(index, shape, strict=True):
        total = total * size + value
    return total


def unravel(position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The coordinates in `shape` of a row-major position."""
    out: list[Index] = []
    for dimension in range(len(shape)):
        inner = prod(shape[dimension + 1 :])
        if inner == 0 or shape[dimension] <= 1:
            out.append(Index())
            continue
        value = position // inner
        if dimension > 0 or value.range[1] >= shape[0]:
            value = value % shape[dimension]
        out.append(value)
    return tuple(out)


def offset(index: Sequence[Index], strides: Iterable[int]) -> Index:
    """Elements from the start of a strided tensor."""
    constant, terms = 0, []
    for value, stride in zip(index, strides, strict=True):
        if stride:
            constant += value.constant * stride
            terms += [(atom, factor * stride) for atom, factor in value.terms]
    return _sum(constant, terms)


def reduced_test(index: Index, bound: int) -> tuple[Index, int]:
    """`index < bound` with common factors divided out, so that vector lanes may drop from the test."""
    for unit in sorted({abs(c) for _, c in index.terms if abs(c) > 1}, reverse=True):
        if bound % unit == 0:
            quotient = index // unit
            known = {atom for atom, _ in index.terms}
            if len(quotient.terms) < len(index.terms) and all(atom in known for atom, _ in quotient.terms):
                return quotient, bound // unit
    return index, bound


def to_cpp(value: Index) -> str:
    """C++ text. Terms with large factors come first, as people write them.

    Loop variables may be 32 bits wide: factors are 64 where the product, or the sum that it begins, may be larger.
    """
    parts = []
    for atom, factor in sorted(value.terms, key=lambda term: (-abs(term[1]), str(term[0]))):
        text = _atom_cpp(atom)
        reached = Index(0, ((atom, factor),)) if parts else value
        wide = "L" if max(map(abs, reached.range)) >= 2**31 else ""
        if factor == -1:
            parts.append(f"-{text}")
        else:
            parts.append(text if factor == 1 else f"{text} * {factor}{wide}")
    if value.constant or not parts:
        parts.append(str(value.constant))
    return " + ".join(parts).replace("+ -", "- ")


def _atom_cpp(atom: Atom) -> str:
    if isinstance(atom, (Var, Opaque)):
        return atom.name
    sign = "/" if isinstance(atom, Quotient) else "%"
    inner = atom.numerator
    simple = len(inner.terms) == 1 and inner.constant == 0 and inner.terms[0][1] == 1
    text = to_cpp(inner)
    if not (simple and isinstance(inner.terms[0][0], (Var, Opaque, Quotient))):
        text = f"({text})"
    return f"{text} {sign} {atom.divisor}" if sign == "/" else f"({text} {sign} {atom.divisor})"


@lru_cache(maxsize=65536)
def _key(atom: Atom) -> str:
    return repr(atom)


def _sum(constant: int, terms: Iterable[tuple[Atom, int]]) -> Index:
    merged: dict[Atom, int] = {}
    for atom, factor in terms:
        merged[atom] = merged.get(atom, 0) + factor
    if not all(merged.values()):
        merged = {atom: factor for atom, factor in merged.items() if factor}
    # a * m * (x // m) + a * (x % m) is a * x.
    for atom, factor in list(merged.items()):
        if not isinstance(atom, Remainder) or merged.get(atom) != factor:
            continue
        quotient = atom.numerator // atom.divisor
        if len(quotient.terms) == 1 and quotient.constant == 0:
            ((partner, unit),) = quotient.terms
            if unit == 1 and merged.get(partner) == factor * atom.divisor:
                del merged[atom], merged[partner]
                rest = Index(constant, tuple(merged.items()))
                return rest + atom.numerator * factor
    if len(merged) < 2:
        return Index(constant, tuple(merged.items()))
    return Index(constant, tuple(sorted(merged.items(), key=lambda term: _key(term[0]))))


@lru_cache(maxsize=65536)
def _range(value: Index) -> tuple[int, int]:
    low = high = value.constant
    for atom, factor in value.terms:
        if isinstance(atom, Var):
            a, b = 0, atom.size - 1
        elif isinstance(atom, Opaque):
            a, b = atom.low, atom.high
        elif isinstance(atom, Quotient):
            a, b = (bound // atom.divisor for bound in atom.numerator.range)
        else:
            a, b = 0, min(atom.divisor - 1, atom.numerator.range[1])
        low += min(a * factor, b * factor)
        high += max(a * factor, b * factor)
    return low, high


@lru_cache(maxsize=65536)
def _variables(value: Index) -> frozenset[str]:
    names: set[str] = set()
    for atom, _ in value.terms:
        if isinstance(atom, Var):
            names.add(atom.name)
        elif isinstance(atom, Opaque):
            names |= atom.depends
        else:
            names |= atom.numerator.variables()
    return frozenset(names)


def _split(value: Index, unit: int) -> tuple[Index, Index]:
    """`value` as multiples of `unit`, and the rest."""
    whole = tuple((a, c) for a, c in value.terms if c % unit == 0)
    rest = tuple((a, c) for a, c in value.terms if c % unit != 0)
    remainder = value.constant % unit
    return Index(value.constant - remainder, whole), Index(remainder, rest)


def _over(value: Index, divisor: int) -> Index:
    return Index(value.constant // divisor, tuple((a, c // divisor) for a, c in value.terms))


def _units(value: Index, divisor: int) -> list[int]:
    units = {gcd(c, divisor) for _, c in value.terms} | {gcd(value.constant, divisor)}
    return sorted((u for u in units if 1 < u < divisor), reverse=True)


@lru_cache(maxsize=65536)
def _floordiv(value: Index, divisor: int) -> Index:
    if divisor == 1:
        return value
    whole, rest = _split(value, divisor)
    base = _over(whole, divisor)
    low, high = rest.range
    if low // divisor == high // divisor:
        return base + low // divisor
    if low < 0:
        shift = -(low // divisor)
        return base - shift + Index(0, ((Quotient(rest + shift * divisor, divisor), 1),))
    for unit in _units(rest, divisor):
        large, small = _split(rest, unit)
        if small.range[0] >= 0 and small.range[1] < unit and large.range[0] >= 0:
            return base + _floordiv(_over(large, unit), divisor // unit)
    if len(rest.terms) == 1 and rest.constant == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Quotient):
            return base + _floordiv(atom.numerator, atom.divisor * divisor)
        if isinstance(atom, Remainder) and atom.divisor % divisor == 0:
            return base + _mod(_floordiv(atom.numerator, divisor), atom.divisor // divisor)
    return base + Index(0, ((Quotient(rest, divisor), 1),))


@lru_cache(maxsize=65536)
def _mod(value: Index, divisor: int) -> Index:
    if divisor == 1:
        return Index()
    _, rest = _split(value, divisor)
    low, high = rest.range
    if low // divisor == high // divisor:
        return rest - (low // divisor) * divisor
    if low < 0:
        rest = rest + -(low // divisor) * divisor
    for unit in _units(rest, divisor):
        large, small = _split(rest, unit)
        if small.range[0] >= 0 and small.range[1] < unit and large.range[0] >= 0:
            return _mod(_over(large, unit), divisor // unit) * unit + small
    if len(rest.terms) == 1 and rest.constant == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Remainder) and atom.divisor % divisor == 0:
            return _mod(atom.numerator, divisor)
    return Index(0, ((Remainder(rest, divisor), 1),))


def _substitute(atom: Atom, values: Mapping[str, Index]) -> Index:
    if isinstance(atom, Var):
        return values.get(atom.name, Index(0, ((atom, 1),)))
    if isinstance(atom, Opaque):
        return Index(0, ((atom, 1),))
    inner = atom.numerator.substitute(values)
    return inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor
