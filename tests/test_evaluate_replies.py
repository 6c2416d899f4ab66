"""Replies of a candidate's process are hearsay: their form is checked, their words are cleaned. And what timed calls
and checks tell together."""

import random

import pytest

from engine.evaluate import cache, checks, probes, replies, trials
from engine.evaluate.checks import Ledger
from engine.evaluate.verify import Verifier
from engine.records import Check
from tests.cheat_tasks import contract_of

OUTPUT = {"dtype": "float32", "shape": [2, 3], "stride": [3, 1], "device": "cpu", "aliases": [], "in_inputs": False}
WANTED = {"dtype": "float32", "shape": [2, 3], "stride": [3, 1], "reference_stride": [3, 1]}
CALL = {"id": 1, "ok": True, "outputs": [OUTPUT], "copied": [True], "error": "", "changed_flags": [], "held": False,
        "new_threads": 0, "exact_types": True}


def test_our_own_replies_are_sound():
    assert replies.sound("call", CALL, {})
    assert replies.sound("call", {"raised": "RuntimeError: no", "error": ""}, {})
    assert replies.sound("block", {"times_us": [1.5, 2.0], "error": ""}, {"order": [0, 1]})
    assert replies.sound("plain", {"issue_us": 3.0, "error": ""}, {"count": 8})
    assert replies.sound("recopy", {"copied": [True], "error": ""}, {})
    assert replies.sound("load", {"lockdown": {"seccomp": "in force"}, "function": "f"}, {})


@pytest.mark.parametrize(("kind", "reply"), [
    ("call", 7), ("call", {}), ("call", CALL | {"outputs": 7}), ("call", CALL | {"outputs": [7]}),
    ("call", CALL | {"outputs": [OUTPUT | {"shape": ["2"]}]}), ("call", CALL | {"outputs": [OUTPUT | {"stride": [1]}]}),
    ("call", CALL | {"copied": [True, True]}), ("call", CALL | {"new_threads": -1}), ("call", CALL | {"held": 1}),
    ("call", {"raised": 5, "error": ""}), ("recopy", {"copied": "yes"}), ("plain", {"issue_us": -1.0, "error": ""}),
    ("block", {"times_us": [1.0], "error": ""}), ("block", {"times_us": [0.0, 1.0], "error": ""}),
    ("load", {}), ("load", {"lockdown": 7}), ("load", {"lockdown": {"seccomp": True}}),
    ("block", {"times_us": [float("nan"), 1.0], "error": ""}), ("block", {"times_us": [True, 1.0], "error": ""}),
])
def test_replies_of_another_form_are_not(kind, reply):
    assert not replies.sound(kind, reply, {"order": [0, 1]})


@pytest.mark.parametrize(("change", "told"), [
    ({"device": "cpu"}, "is on cpu, the inputs are on cuda"), ({"dtype": "float64"}, "has dtype float64"),
    ({"shape": [3, 2], "stride": [2, 1]}, "has shape"), ({"stride": [0, 1]}, "overlaps itself"),
])
def test_outputs_must_be_what_the_contract_says_before_values_count(change, told):
    right = OUTPUT | {"device": "cuda"}
    assert replies.wrong_outputs(CALL | {"outputs": [right]}, [WANTED], "cuda") == ""
    assert told in replies.wrong_outputs(CALL | {"outputs": [right | change]}, [WANTED], "cuda")


def test_words_of_a_candidate_reach_nobody_with_escapes():
    shown = replies.plain_text("\x1b[2J\x1b]0;title\x07re\u202efused\x00 \x9bm a\tb\nc")
    assert shown == "refused m a\tb\nc"
    assert replies.plain_text("a\x1b]8;;http://x\x1b\\b") == "ab"
    assert len(replies.brief("x" * 9999)) == replies.TEXT


def test_one_call_that_does_the_work_of_all_is_seen_and_interruptions_are_not():
    generator = random.Random(3)
    honest = [[100 * generator.lognormvariate(0, 0.05) * (30 if generator.random() < 0.03 else 1) for _ in range(10)]
              for _ in range(20)]
    batched = [[1000.0 if i == 3 else 5.0 for i in range(10)] for _ in range(20)]
    assert probes.one_does_the_work_of_several(honest) == ""
    assert "do the work" in probes.one_does_the_work_of_several(batched)
    assert "do the work" in probes.one_does_the_work_of_several([[5.0, 400.0]] * 5)
    assert probes.one_does_the_work_of_several([[7.0]] * 5) == ""


class Told:
    """What `probes.bias` sees of a verifier."""

    def __init__(self):
        self.ledger = Ledger("match")


def draws(*leans):
    return {"output": [{"lean": lean, "bias": 0.0} for lean in leans]}


@pytest.mark.parametrize(("leans", "status"), [
    ((1.5, 1.2, 3.0, 1.1), "fail"), ((-2.0, -2.0, -2.0, -2.0), "fail"), ((1.5, 1.2, -3.0, 1.1), "pass"),
    ((1.5, 1.2, 0.3, 1.1), "pass"), ((9.0, 9.0, 9.0), "not run: only 3 independent draws"),
])
def test_a_bias_has_one_sign_in_every_draw(leans, status):
    told = Told()
    probes.bias(told, draws(*leans))
    found = {c.name: c.status for c in told.ledger.verification("cpu", "none").checks}
    assert found["bias"] == status
    assert told.ledger.rejected == (status == "fail")


def test_a_bias_is_what_kernelbench_accepts():
    ledger = Ledger("kernelbench")
    ledger.fail("bias", "small")
    assert not ledger.rejected


def test_every_check_is_named_in_the_verdict_with_the_reason_where_it_did_not_run():
    ledger = Ledger("match")
    ledger.ok("runs")
    ledger.skip("stream order", "no streams here")
    found = {c.name: c.status for c in ledger.verification("cpu", "none").checks}
    assert tuple(found) == checks.NAMES
    assert found["stream order"] == "not run: no streams here"
    assert found["wall clock"] == "not run: it was not timed"
    assert found["racecheck"] == "not run: for a winner only"
    ledger.fail("runs", "crashed")
    after = {c.name: c.status for c in ledger.verification("cpu", "none").checks}
    assert after["numeric"] == "not run: an earlier check failed"


def test_checks_that_ran_later_take_the_place_of_those_that_had_not():
    verification = Ledger("match").verification("gpu", "none")
    merged = checks.merged(verification, [Check(name="sanitizer", status="pass", detail="memcheck")])
    assert [c.name for c in merged.checks] == [c.name for c in verification.checks]
    assert next(c for c in merged.checks if c.name == "sanitizer").status == "pass"


@pytest.mark.parametrize(("raised", "refuses"), [
    ("RuntimeError: x is misaligned, 16 bytes are needed", True), ("RuntimeError: CUDA error: misaligned address", False),
    ("RuntimeError: an illegal memory access was encountered", False), ("RuntimeError: [emulated] no such place", False),
])
def test_a_refusal_of_odd_addresses_may_say_so_and_an_error_of_the_device_is_none(raised, refuses):
    verifier = Verifier(None, None, contract_of("product")[0], Ledger("match"), trials.Limits())
    assert verifier._refuses({"raised": raised, "error": ""}) is refuses


def test_each_input_is_changed_inside_at_its_end_and_by_a_swap_and_some_weights_too():
    contract, _ = contract_of("product")
    wanted, least = trials.changes(contract, trials.Limits())
    first = wanted[:6]
    assert {c.where for c in first if c.argument == "x"} == {"inside", "last", "swap"}
    assert {c.argument for c in first} == {"x", "w"}  # The larger one of two weights.
    assert least == trials.LEAST_CHANGES
    assert trials.misaligned(contract).odd


def test_a_stored_verdict_is_good_until_code_that_makes_one_changes(tmp_path, monkeypatch):
    before = cache.code_key()
    monkeypatch.setattr(cache, "ENGINE", tmp_path)
    for name in ("evaluate/checks.py", "worker/judge.py", "runtime/emulator/warp.h", "data/devices.toml", "report.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one")
    keys = [before, cache.code_key()]
    for name in ("evaluate/checks.py", "worker/judge.py", "runtime/emulator/warp.h", "data/devices.toml"):
        (tmp_path / name).write_text("another")
        keys.append(cache.code_key())
    assert len(set(keys)) == len(keys)
    (tmp_path / "report.py").write_text("another")
    assert cache.code_key() == keys[-1]
