"""What compilers say of the user's own text names the user's file and its lines."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from contracts.cuda_adaptor import MARK
from engine import local
from engine.evaluate import messages
from engine.own_names import lines_of, named
from engine.records import BuildError, Candidate, Check, Evaluation, Failure
from tests.fakes import NO_GPU, WORKLOAD, accepted, contract_of

TEXT = "__global__ void f() {\n  wrong;\n}"
ADAPTED = f"{TEXT}\n{MARK}\nvoid f_forward() {{\n  missing;\n}}\n"


def failed(*errors):
    log = "\n".join(f"cuda_source.cu({line}): error: {message}" for line, message in errors)
    found = messages.errors(log, ADAPTED)
    return Evaluation(candidate_id="c", stage="screened", failure=Failure(
        stage="build", reason=f"cuda_source.cu:{found[0].line}: {found[0].message}", errors=found, log_tail=log))


def test_the_users_file_and_line_are_named():
    found = named(failed((2, "no such thing")), "saxpy.cu", lines=lines_of(ADAPTED)).failure
    assert found.reason == "saxpy.cu:2: no such thing"
    assert found.errors == (BuildError(line=2, message="no such thing"),)
    assert found.log_tail == "saxpy.cu(2): error: no such thing"


def test_a_line_of_the_adaptor_is_none_of_the_users_file():
    found = named(failed((6, "missing is undefined")), "saxpy.cu", lines=lines_of(ADAPTED)).failure
    assert found.reason == "saxpy.cu, in the code added after it to call it: missing is undefined"
    assert found.errors == (BuildError(line=None, message="missing is undefined"),)


def test_a_file_without_an_adaptor_has_all_its_lines():
    assert lines_of(TEXT) is None
    assert named(failed((218, "no")), "broken.cu").failure.reason == "broken.cu:218: no"


def test_what_checks_tell_is_named_too():
    verification = accepted()
    bad = Check(name="racecheck", status="fail", detail="a race at cuda_source.cu:2")
    evaluation = Evaluation(candidate_id="c", stage="verified", verification=type(verification)(
        match=True, strict=True, kernelbench=True, checks=(bad,), where="gpu"))
    assert named(evaluation, "saxpy.cu").verification.checks[0].detail == "a race at saxpy.cu:2"


@pytest.mark.parametrize(("author", "said"), [("user", "saxpy.cu:2: no"), ("expert", "cuda_source.cu:2: no")])
async def test_only_the_users_own_candidate_of_a_cu_file_is_named_by_it(monkeypatch, tmp_path, author, said):
    class Broken:
        def __init__(self, *_args, **_kwargs):
            pass

        async def evaluate(self, _contract, _candidate):
            return failed((2, "no"))

        async def confirm(self, _contract, _candidate, _evaluation):
            return failed((2, "no"))

        async def retime(self, _contract, _candidates):
            return [failed((2, "no"))]

        def identity(self):
            return {}

    monkeypatch.setattr(local, "LocalEvaluator", Broken)
    contract = contract_of(["relu"])
    task = SimpleNamespace(contract=contract, folder=tmp_path, reduced=None, reduced_folder=None)
    evaluators = [local.LocalJobEvaluator(SimpleNamespace(toolchain=None), task, NO_GPU, WORKLOAD, own_file=name)
                  for name in ("saxpy.cu", "renamed.cu")]
    candidate = Candidate(id="c", source=ADAPTED, round=0, author=author, space="cuda")
    found = await evaluators[0].evaluate(contract, candidate)
    confirmed = await evaluators[0].confirm(contract, candidate, found)
    again = await evaluators[0].retime(contract, [(candidate, found)])
    assert {one.failure.reason for one in (found, confirmed, *again)} == {said}
    # What was stored under another name of the file is not told under this one.
    assert evaluators[0].identity() != evaluators[1].identity()
