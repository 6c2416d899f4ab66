"""Planning, case by case: facts in, space and direction out. A new case is a new row."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import ContractError
from contracts.tensors import TensorSpec
from engine.codegen import Tunable
from engine.planning import bottleneck, facts, spa, ssda
from engine.planning.bottleneck import Lesson
from engine.planning.catalog import load_catalog, parse_note
from engine.records import SLOWER, Candidate, Failure, KernelFacts, WorkloadProfile
from tests.fakes import WORKLOAD, contract_of, evaluation_of

CATALOG = load_catalog()
COMPUTE = replace(WORKLOAD, bound="compute", intensity=300.0)
LATENCY = replace(WORKLOAD, bound="latency", roof_us=2.0)
ALL_MOVES = {"C": 2, "P": 2, "M": 2, "R": 2, "T": 2}
MODEL = ["linear", "relu", "layer_norm", "add"] * 6


def plan_of(ops, workload: WorkloadProfile, *, evaluation=None, args=None, extra=None, moves=None, learnt=(),
            results=None, locked=None, **more):
    contract = contract_of(ops, args=args, extra=extra)
    known = {**facts.task_facts(contract, workload, CATALOG.families), **facts.evidence_facts(evaluation, workload),
             **more}
    spaces = ssda.score_spaces(CATALOG, known, results or {}, locked=locked)
    moves = dict.fromkeys(CATALOG.spaces, moves or ALL_MOVES)
    return ssda.decide(CATALOG, known, round=1, spaces=spaces, bottleneck=bottleneck.bottleneck_of(
        evaluation, workload), learnt=learnt, moves=moves)


def measured(limiter: str, **kernel: object):
    made = Candidate(id="p", source="", space="cuda")
    row = {"name": "k", "registers": 32, "shared_bytes": 0, "spill_bytes": 0, "occupancy": 0.8, **kernel}
    return evaluation_of(made, us=50.0, limiter=limiter, kernels=(KernelFacts(**row),))  # type: ignore[arg-type]


DEPTHWISE = {"conv2d": {"weight": None, "groups": 64}}


@pytest.mark.parametrize(("ops", "workload", "space"), [
    (["relu"], WORKLOAD, "cuda"),
    (["relu", "exp", "mul", "add"], WORKLOAD, "cuda"),
    (["softmax"], WORKLOAD, "cuda"),
    (["layer_norm"], WORKLOAD, "cuda"),
    (["sum"], WORKLOAD, "cuda"),
    (["cumsum"], WORKLOAD, "cuda"),
    (["gelu"], LATENCY, "cuda"),
    (["mm"], COMPUTE, "cuda_libs_torch"),
    (["linear", "relu"], COMPUTE, "cuda_libs_torch"),
    (["conv2d", "relu", "add"], COMPUTE, "cuda_libs_torch"),
    (["scaled_dot_product_attention"], COMPUTE, "cuda_libs_torch"),
    (["lstm"], COMPUTE, "cuda_libs_torch"),
    (MODEL, COMPUTE, "cuda_libs_torch"),
])
def test_the_workload_chooses_the_first_space(ops, workload, space):
    plan = plan_of(ops, workload)
    assert plan.space == space, plan.space_reason
    assert plan.space_reason


@pytest.mark.parametrize(("ops", "workload", "evaluation", "direction"), [
    (["relu", "exp"], WORKLOAD, None, "M"),
    (["mm"], COMPUTE, None, "T"),
    (["conv2d", "relu"], COMPUTE, None, "M"),
    (["relu", "exp"], LATENCY, None, "C"),
    (["softmax"], WORKLOAD, measured("occupancy", occupancy=0.2), "P"),
    (["softmax"], WORKLOAD, measured("uncoalesced"), "M"),
    (["softmax"], WORKLOAD, measured("spills", spill_bytes=64), "P"),
    (["softmax"], WORKLOAD, measured("barrier"), "P"),
    (["relu"], WORKLOAD, measured("dram-bandwidth"), "M"),
    (["mm"], COMPUTE, measured("l2-bandwidth"), "R"),
    (["mm"], COMPUTE, measured("fp-pipe"), "T"),
    (["relu", "exp", "mul"], WORKLOAD, measured("launch"), "C"),
    (["max_pool2d"], WORKLOAD, measured("divergence"), "C"),
])
def test_facts_choose_the_direction(ops, workload, evaluation, direction):
    plan = plan_of(ops, workload, evaluation=evaluation)
    assert plan.direction == direction, {code: (s.value, s.reason) for code, s in plan.scores.items()}
    assert all(0 <= score.value <= 10 and score.reason for score in plan.scores.values())


def test_a_reason_that_another_says_more_of_is_told_once():
    plan = plan_of(["mm"], COMPUTE)
    assert plan.reason == "the work is compute bound and 100% of it is matrix arithmetic"
    # By itself it is the reason.
    assert plan_of(["relu"], COMPUTE).scores["T"].reason.count("the work is compute bound") == 1


def test_arithmetic_that_was_not_counted_is_not_planned_with():
    uncounted = replace(WORKLOAD, flops=0, intensity=0.0, shares=())
    known = facts.task_facts(contract_of(["relu"]), uncounted, CATALOG.families)
    assert known["intensity"] is None
    assert "0 FLOP" not in plan_of(["relu"], uncounted).scores["M"].reason


def test_a_depthwise_convolution_is_a_stencil_and_gets_own_kernels():
    weight = {"weight": TensorSpec.contiguous("float32", (64, 1, 3, 3))}
    from contracts.graph import Ref

    plan = plan_of(["conv2d"], WORKLOAD, args={"conv2d": {"weight": Ref("weight"), "groups": 64}}, extra=weight)
    assert plan.space == "cuda", plan.space_reason
    assert "stencil" in plan.space_reason


def test_every_limiter_of_the_profiler_moves_a_score():
    metrics = Path(facts.__file__).parent.parent / "data" / "metrics.toml"
    limiters = {rule["limiter"] for rule in tomllib.loads(metrics.read_text())["rule"]}
    known = {c.value for row in CATALOG.direction_rubric for c in row.when if c.fact == "limiter"}
    assert limiters <= known


def test_a_direction_without_choices_is_not_chosen():
    assert plan_of(["relu", "exp"], WORKLOAD, moves={**ALL_MOVES, "M": 0}).direction != "M"


def test_a_direction_that_failed_thrice_gives_way():
    learnt = [Lesson(bottleneck="memory", direction="M", space="cuda", gain=0.9, candidate=str(n)) for n in range(3)]
    assert plan_of(["relu", "exp"], WORKLOAD, learnt=learnt).direction != "M"


def test_what_was_learnt_in_one_space_guides_and_is_said_in_another():
    learnt = [Lesson(bottleneck="memory", direction="R", space="cuda", gain=1.4, candidate="a"),
              Lesson(bottleneck="memory", direction="P", space="cuda", gain=None, candidate="b"),
              Lesson(bottleneck="launch", direction="C", space="cuda", gain=2.0, candidate="c")]
    without = plan_of(MODEL, WORKLOAD)
    plan = plan_of(MODEL, WORKLOAD, learnt=learnt)
    assert plan.space != "cuda"
    assert plan.scores["R"].value > without.scores["R"].value
    assert plan.scores["P"].value < without.scores["P"].value
    assert plan.scores["C"] == without.scores["C"], "a lesson under another bottleneck counts for nothing"
    assert plan.transfer == ("P under memory, learnt in cuda: no candidate of 1 was accepted",
                             "R under memory, learnt in cuda: it helped, 1.40x at best")


def test_lessons_come_from_parents_and_children_whatever_the_space():
    parent = Candidate(id="p", source="1", space="cuda")
    child = Candidate(id="c", source="2", space="cuda_libs", direction="M", parents=("p",))
    wrong = Candidate(id="w", source="3", space="cuda", direction="P", parents=("p",))
    evaluations = {"p": measured("dram-bandwidth"), "c": replace(evaluation_of(child, us=40.0)),
                   "w": replace(evaluation_of(wrong), verification=None)}
    found = bottleneck.lessons([parent, child, wrong], evaluations, WORKLOAD, "match")
    assert found == (
        Lesson(bottleneck="dram-bandwidth", direction="M", space="cuda_libs", gain=1.25, candidate="c"),
        Lesson(bottleneck="dram-bandwidth", direction="P", space="cuda", gain=None, candidate="w"))


def test_a_candidate_that_was_left_as_slower_teaches_its_brief_time():
    parent = Candidate(id="p", source="1", space="cuda")
    slow = Candidate(id="s", source="2", space="cuda", direction="M", parents=("p",))
    left = replace(evaluation_of(slow, us=100.0), failure=Failure(stage=SLOWER, reason="0.5x where the best has 1x"))
    found = bottleneck.lessons([parent, slow], {"p": measured("dram-bandwidth"), "s": left}, WORKLOAD, "match")
    assert [(lesson.direction, lesson.gain) for lesson in found] == [("M", 0.5)]


def test_results_move_the_space():
    bad = {"cuda": {"space.tried": 3, "space.accepted": 0, "space.writable": True}}
    assert plan_of(["relu"], WORKLOAD, results=bad).space != "cuda"
    best = {"cuda_libs_torch": {"space.is_best": True, "space.tried": 2, "space.accepted": 2},
            "cuda": {"space.tried": 2, "space.accepted": 2, "space.behind": 2.0}}
    assert plan_of(["relu"], WORKLOAD, results=best).space == "cuda_libs_torch"


def test_a_locked_space_is_never_left():
    assert plan_of(MODEL, COMPUTE, locked="cuda").space == "cuda"
    assert plan_of(MODEL, COMPUTE, locked="cuda_libs").space in ("cuda", "cuda_libs")


def test_facts_that_are_not_known_apply_no_row():
    workload = replace(WORKLOAD, intensity=float("inf"))
    known = facts.task_facts(contract_of(["relu"]), workload, CATALOG.families)
    assert known["intensity"] is None
    assert "occupancy" not in known


# ------------------------------------------------------------- strategies

TUNABLES = (
    Tunable(key="a.vector", direction="M", values=(4, 2, 1), meaning="", weight=0.2),
    Tunable(key="b.vector", direction="M", values=(4, 8), meaning="", weight=0.7),
    Tunable(key="b.rows", direction="P", values=(1, 2, 4), meaning="", weight=0.7),
)


def strategy_of(**kwargs: object):
    plan = plan_of(["softmax"], WORKLOAD)
    plan = replace(plan, direction="M")
    return spa.plan_strategy(CATALOG, plan, facts.task_facts(contract_of(["softmax"]), WORKLOAD, CATALOG.families),
                             bottleneck="dram-bandwidth", **kwargs)  # type: ignore[arg-type]


def test_a_strategy_has_steps_of_the_fitting_notes_and_constraints_of_the_space():
    strategy = strategy_of()
    assert any("16 bytes" in step for step in strategy.steps)
    assert any("no library" in constraint for constraint in strategy.constraints)


def test_moves_are_single_steps_of_the_direction_heaviest_tunable_first():
    base = spa.Base(space="cuda", tunables=TUNABLES, candidate="p")
    moves = strategy_of(bases=[base], wanted=6).moves
    assert [(m["direction"], m["choices"]) for m in moves[:3]] == [
        ("M", {"b.vector": 8}), ("M", {"a.vector": 2}), ("M", {"a.vector": 1})]
    assert {m["direction"] for m in moves[3:5]} == {"P"}
    assert all(m["parent"] == "p" for m in moves)


def test_moves_that_were_tried_are_left_out():
    base = spa.Base(space="cuda", tunables=TUNABLES)
    moves = strategy_of(bases=[base], tried=[("cuda", {"b.vector": 8}), ("cuda_libs", {"a.vector": 2})]).moves
    assert {"b.vector": 8} not in [m["choices"] for m in moves]
    assert {"a.vector": 2} in [m["choices"] for m in moves]
    assert spa.untried([base], [("cuda", {"b.vector": 8})]) == {"M": 2, "P": 2}


def test_many_tunables_of_one_kind_are_moved_together_first():
    many = tuple(Tunable(key=f"linear_{n}.means", direction="M", values=("aten", "cublas"), meaning="", weight=0.1)
                 for n in range(4))
    moves = strategy_of(bases=[spa.Base(space="cuda", tunables=many)]).moves
    assert moves[0]["choices"] == {f"linear_{n}.means": "cublas" for n in range(4)}
    assert moves[0]["title"] == "every means = cublas"
    assert moves[1]["choices"] == {"linear_0.means": "cublas"}
    back = strategy_of(bases=[spa.Base(space="cuda", tunables=many, choices=moves[0]["choices"])]).moves
    assert back[0]["choices"] == {}


def test_later_moves_join_what_helped_apart():
    bases = [spa.Base(space="cuda", choices={"b.vector": 8}, tunables=TUNABLES, candidate="p"),
             spa.Base(space="cuda", choices={"b.rows": 2}, tunables=TUNABLES, candidate="q")]
    moves = strategy_of(bases=bases).moves
    assert moves[0]["choices"] == {"b.vector": 8, "b.rows": 2}
    assert moves[0]["title"] == "also b.rows = 2"
    assert moves[0]["direction"] == "P"


def test_pairs_follow_when_single_moves_are_used_up():
    base = spa.Base(space="cuda", tunables=TUNABLES)
    singles = [("cuda", dict([pair])) for pair in [("b.vector", 8), ("a.vector", 2), ("a.vector", 1), ("b.rows", 2),
                                                    ("b.rows", 4)]]
    moves = strategy_of(bases=[base], tried=singles, wanted=3).moves
    assert len(moves) == 3
    assert all(len(m["choices"]) == 2 for m in moves)


# -------------------------------------------------------------- data files

def test_a_further_space_is_rows_alone(tmp_path):
    (tmp_path / "spaces.toml").write_text(
        '[triton]\ntitle = "Triton"\ncontains = ""\npermits = ["Triton kernels"]\nconstraints = ["Triton only."]\n')
    (tmp_path / "rubric.toml").write_text(
        '[[space]]\nname = "triton"\npoints = 9\nreason = "tiles are easy there"\nwhen = { families = "has softmax" }\n')
    catalog = load_catalog([tmp_path])
    known = facts.task_facts(contract_of(["softmax"]), WORKLOAD, catalog.families)
    plan = ssda.decide(catalog, known, round=1, spaces=ssda.score_spaces(catalog, known, {}), bottleneck="memory")
    assert plan.space == "triton"
    assert "Triton only." in spa.plan_strategy(catalog, plan, known, bottleneck="memory").constraints
    assert next(iter(ssda.score_spaces(CATALOG, known, {}))) == "cuda"


def test_users_add_directions_notes_and_operators(tmp_path):
    (tmp_path / "directions.toml").write_text(
        '[S]\ntitle = "sparsity"\naddresses = "zeros"\nsteps = ["Skip zeros."]\nconstraints = []\n')
    (tmp_path / "rubric.toml").write_text(
        '[[direction]]\nname = "S"\npoints = 10\nreason = "many zeros"\nwhen = { families = "has mine" }\n')
    (tmp_path / "families.toml").write_text('mine = ["my_op"]\n')
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "s.md").write_text("title: Zeros\ndirection: S\n\n## Do\n- Use the mask.\n")
    catalog = load_catalog([tmp_path])
    known = facts.task_facts(contract_of(["my_op"]), WORKLOAD, catalog.families)
    plan = ssda.decide(catalog, known, round=1, spaces=ssda.score_spaces(catalog, known, {}), bottleneck="memory")
    assert plan.direction == "S"
    assert spa.plan_strategy(catalog, plan, known, bottleneck="memory").steps == ("Use the mask.",)


@pytest.mark.parametrize(("file", "text", "said"), [
    ("spaces.toml", "[x]\ntitle = 3\n", "'x' has no text 'title'"),
    ("spaces.toml", '[x]\ntitle = "t"\ncontains = "nowhere"\npermits = []\nconstraints = []\n', "nowhere"),
    ("spaces.toml", "[x\n", "not TOML"),
    ("spaces.toml", "x = 1\n", "not a table"),
    ("directions.toml", '[X]\ntitle = "t"\naddresses = "a"\nsteps = "s"\nconstraints = []\n', "'steps' as a list"),
    ("directions.toml", '[X]\ntitle = "t"\ncolour = "red"\n', "unknown 'colour'"),
    ("rubric.toml", '[[direction]]\nname = "Q"\npoints = 1\nreason = "r"\n', "row 1 names 'Q'"),
    ("rubric.toml", '[[direction]]\nname = "M"\npoints = "many"\nreason = "r"\n', "points 'many'"),
    ("rubric.toml", '[[direction]]\nname = "M"\npoints = 1\nreason = "r"\nwhen = { warmth = 3 }\n', "fact 'warmth'"),
    ("rubric.toml", '[[direction]]\nname = "M"\npoints = 1\nreason = "{warmth}"\n', "fact 'warmth'"),
    ("rubric.toml", '[[direction]]\nname = "M"\npoints = 1\nreason = "r"\nwhen = { ops = ">= x" }\n', "comparison"),
    ("rubric.toml", '[[colour]]\nname = "M"\n', "unknown tables colour"),
    ("families.toml", "mine = 3\n", "list of texts"),
])
def test_bad_rows_are_refused_by_name(tmp_path, file, text, said):
    (tmp_path / file).write_text(text)
    with pytest.raises(ContractError, match=said.replace("(", r"\(")) as caught:
        load_catalog([tmp_path])
    assert file in str(caught.value)
    assert "to fix:" in str(caught.value)


@pytest.mark.parametrize(("text", "said"), [
    ("title: x\ndirection: Q\n\n## Do\n- a\n", "'Q'"),
    ("title: x\ndirection: M\ncolour: red\n\n## Do\n- a\n", "colour"),
    ("title: x\ndirection: M\n\nwords\n", "no steps"),
])
def test_bad_notes_are_refused(text, said):
    with pytest.raises(ContractError, match=said):
        parse_note(text, "n.md", CATALOG.directions)


def test_our_notes_cover_every_direction_and_name_known_things():
    metrics = Path(facts.__file__).parent.parent / "data" / "metrics.toml"
    limiters = {rule["limiter"] for rule in tomllib.loads(metrics.read_text())["rule"]}
    assert {note.direction for note in CATALOG.notes} == set(CATALOG.directions)
    for note in CATALOG.notes:
        assert note.bottlenecks <= limiters | {"memory", "compute", "latency"}, note.file
        assert note.families <= set(CATALOG.families.values()), note.file
