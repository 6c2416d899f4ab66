"""Values that come from one of several places (concatenation, padding): one test for a whole pack where that holds."""

from __future__ import annotations

from collections.abc import Callable

from engine.codegen.index import Index, reduced_test
from engine.codegen.prims import Choose, Indices, broadcast_index
from engine.codegen.scalar_types import COMPUTE_TYPE
from engine.codegen.writer import Scalar, Writer


def write_choice(writer: Writer, prim: Choose, index: Indices, key: object) -> Scalar:
    """Statements that take the element of the first branch whose test holds."""
    cases: list[tuple[str, Callable[[], Scalar]]] = []
    names: frozenset[str] = frozenset()
    for branch in prim.branches:
        tests = _reduced_tests(list(branch.tests(index)))
        test = writer.test_text(tests)
        if test == "false":
            continue
        names = names.union(*(t[0].variables() for t in tests))
        cases.append((test, lambda b=branch: writer.value(b.source, b.forward(index))))
        if test == "true":
            break
    else:
        if prim.otherwise is not None:
            cases.append(("true", lambda o=prim.otherwise: writer.value(o, broadcast_index(index, o.shape))))
    if len(cases) == 1 and cases[0][0] == "true":
        return cases[0][1]()
    # One test for all lanes of a pack: the branches load packs, and the element is picked from an array.
    whole_pack = _innermost_is_lanes(writer) and writer.lanes.name not in names
    lanes_scope = writer.scopes.pop() if whole_pack else None
    ctype = COMPUTE_TYPE[prim.dtype]
    name = writer.namer.fresh(prim.name)
    width = writer.lanes.width
    declaration = f"{ctype} {name}[{width}];" if whole_pack else f"{ctype} {name};"
    lines = []
    for position, (test, build) in enumerate(cases):
        body = _branch(writer, name, build, whole_pack=whole_pack)
        last = position == len(cases) - 1
        word = "if" if position == 0 else "} else if"
        lines.append("} else {" if last and position > 0 else f"{word} ({test}) {{")
        lines += ["    " + text if not text.startswith("#") else text for text in body]
    lines.append("}")
    # The branches may use any variable in scope, so the choice stays in the innermost scope.
    place = name
    kept = whole_pack and writer.can_keep(len(writer.scopes) - 1)
    if kept:
        writer.usage.keys.setdefault(key, set()).add(writer.current_pass)
        if key in writer.resident:
            writer.kept_declarations.append(f"{ctype} {name}[{writer.item_count}][{width}];")
            declaration, place = "", f"{name}[{writer.item}]"
            lines = [line.replace(f"{name}[", f"{place}[") for line in lines]
    writer.scopes[-1].lines += [declaration, *lines] if declaration else lines
    if lanes_scope is not None:
        writer.scopes.append(lanes_scope)
        place = f"{place}[{writer.lanes.name}]"
        if kept and key in writer.resident:
            writer.kept[key] = place
    return Scalar(place, len(writer.scopes) - 1)


def _innermost_is_lanes(writer: Writer) -> bool:
    lanes = writer.lanes
    return lanes.width > 1 and lanes.name in writer.scopes[-1].variables and writer.barrier_depth() == 0


def _branch(writer: Writer, name: str, build: Callable[[], Scalar], *, whole_pack: bool) -> list[str]:
    """The statements of one case, which set `name`."""
    writer.open(barrier=True)
    if not whole_pack:
        writer.line(f"{name} = {build().text};")
        return writer.close()
    writer.open(frozenset({writer.lanes.name}))
    writer.line(f"{name}[{writer.lanes.name}] = {build().text};")
    lanes = writer.close()
    outside = writer.close()
    return [*outside, "#pragma unroll",
            f"for (int {writer.lanes.name} = 0; {writer.lanes.name} < {writer.lanes.width}; ++{writer.lanes.name}) {{",
            *("    " + text if not text.startswith("#") else text for text in lanes), "}"]


def _reduced_tests(
    tests: list[tuple[Index, int | None, int | None]]
) -> list[tuple[Index, int | None, int | None]]:
    """The tests with common factors divided out, so that vector lanes drop from them where they may."""
    found = []
    for index, low, high in tests:
        for bound, is_low in ((low, True), (high, False)):
            if bound is not None:
                left, right = reduced_test(index, bound)
                found.append((left, right, None) if is_low else (left, None, right))
    return found
