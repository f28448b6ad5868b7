"""Plans: TOML in and out, errors that point at the line, what cannot be kept."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.core.terms import PPM, Close, Comparison, Condition, Metric, Selection
from consortium.errors import (
    ImpossiblePlanError,
    PlanError,
    PlanFileError,
    PlanSyntaxError,
    UnknownKeyError,
    WrongTypeError,
)
from consortium.plan import Plan, parse_plan, read_plan, write_plan
from consortium.plan.text import parse_condition, parse_duration_ms

LOSS = (Metric("loss", higher_is_better=False),)

BAD_PLANS = [
    # text, error, line, column of the caret, words of the message, words of the hint
    ("[federation]\nruonds = 3\n", UnknownKeyError, 2, 0, "unknown key `ruonds`", "mean rounds?"),
    ("[federaton]\nrounds = 3\n", UnknownKeyError, 1, 1, "unknown section", "mean federation?"),
    ("x = 1\n", UnknownKeyError, 1, 0, "unknown section", "known keys: asynchronous"),
    ("[federation]\n\nrounds = '3'\n", WrongTypeError, 3, 0, "a whole number", "rounds, at most"),
    ("[federation]\nrounds = 0\n", WrongTypeError, 2, 0, "greater than or equal to 1", ""),
    ("[federation]\nrounds = true\n", WrongTypeError, 2, 0, "a whole number", ""),
    ("[federation]\nrounds = nan\n", WrongTypeError, 2, 0, "a whole number", ""),
    ("[strategy]\n  clip = inf\n", WrongTypeError, 2, 2, "finite", "L2 norm"),
    ("[strategy]\nname = 'krum'\n", WrongTypeError, 2, 0, "should be 'fedavg'", "one of fedavg"),
    ("[selection]\nspread = 'a'\n", WrongTypeError, 2, 0, "a list", "diverse"),
    ("[selection]\nrequire = ['a >']\n", WrongTypeError, 2, 0, "a condition is", "memory_gb"),
    ("[round]\nduration = '1 hour'\n", WrongTypeError, 2, 0, "whole number and a unit", ""),
    ("federation = 3\n", WrongTypeError, 1, 0, "is a section", "[federation]"),
    (
        "[federation]\nquorum = 5\n[selection]\ntarget = 3\n",
        ImpossiblePlanError,
        2,
        0,
        "quorum 5 is above target 3",
        "set quorum to 3 or less",
    ),
    (
        "federation.quorum = 5\nselection.target = 3\n",
        ImpossiblePlanError,
        1,
        0,
        "above target",
        "",
    ),
    ("[selection]\nwait_for = 2\n", ImpossiblePlanError, 2, 0, "below quorum", "3 or more"),
    (
        "[selection]\nstrategy = 'diverse'\n",
        ImpossiblePlanError,
        2,
        0,
        "needs the attributes",
        "spread =",
    ),
    (
        "[strategy]\nweight = 'capped'\n",
        ImpossiblePlanError,
        2,
        0,
        "needs weight_cap",
        "weight_cap =",
    ),
    ("[strategy]\nweight_cap = 3.0\n", ImpossiblePlanError, 2, 0, "has no effect", "capped"),
    ("[round]\nduration = '0s'\n", ImpossiblePlanError, 2, 0, "is zero", "30m"),
    ("[evaluation]\ndeadline = '0s'\n", ImpossiblePlanError, 2, 0, "is zero", "10m"),
    (
        "[evaluation]\nquorum = 9\n[selection]\ntarget = 3\n",
        ImpossiblePlanError,
        2,
        0,
        "3 at most",
        "3 or less",
    ),
    (
        "[evaluation]\nenabled = false\n[stop]\npatience = 3\n",
        ImpossiblePlanError,
        4,
        0,
        "the plan has none",
        "enabled = true",
    ),
    (
        "[evaluation]\nenabled = false\n[stop]\nloss_below = 0.1\n",
        ImpossiblePlanError,
        4,
        0,
        "the plan has none",
        "",
    ),
    (
        "[federation]\nsites = 'a'\nserver = 'b'\n",
        ImpossiblePlanError,
        3,
        0,
        "both sites",
        "keep one",
    ),
    (
        "[privacy]\nepsilon = 1.0\n",
        ImpossiblePlanError,
        2,
        0,
        "does not say what is hidden",
        'unit = "record"',
    ),
    (
        "[security]\nsecure_aggregation = true\n[federation]\nquorum = 2\n",
        ImpossiblePlanError,
        4,
        0,
        "of a sum of 2",
        "quorum = 3",
    ),
    ("[federation]\nrounds = \n", PlanSyntaxError, 2, 9, "not TOML", "in quotes"),
    ("[federation\n", PlanSyntaxError, 1, 11, "not TOML", ""),
]


@pytest.mark.parametrize(("text", "error", "line", "column", "says", "hint"), BAD_PLANS)
def test_a_bad_plan_names_the_line_and_what_to_do(
    text: str, error: type[PlanError], line: int, column: int, says: str, hint: str
) -> None:
    with pytest.raises(error) as caught:
        parse_plan(text, "consortium.toml")
    assert says in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.where == f"consortium.toml:{line}"
    source, caret = caught.value.excerpt.split("\n")
    assert source == text.splitlines()[line - 1]
    assert caret.index("^") == column
    assert caught.value.exit_code == 3


def test_a_section_that_is_spelt_in_an_odd_way_is_reported_without_a_line() -> None:
    with pytest.raises(UnknownKeyError) as caught:
        parse_plan('federation = { "ruon\\u0064s" = 3 }\n', "p.toml")
    assert caught.value.where == "p.toml:1"


def test_a_syntax_error_at_the_end_still_says_where(tmp_path: Path) -> None:
    with pytest.raises(PlanSyntaxError) as caught:
        parse_plan("a = [\n", "p.toml")
    assert caught.value.where.startswith("p.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[federation]\nrounds = " + "9" * 5000, "a number has too many digits"),
        ("a = " + "[" * 5000, "nested too deeply"),
        ("a = " + "{a = " * 5000, "nested too deeply"),
    ],
    ids=["digits", "lists", "tables"],
)
def test_what_python_cannot_hold_is_a_syntax_error(text: str, says: str) -> None:
    with pytest.raises(PlanSyntaxError, match=says) as caught:
        parse_plan(text, "p.toml")
    assert caught.value.where == "p.toml"


def test_files_that_are_no_plans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="cannot read"):
        read_plan(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanSyntaxError, match="UTF-8"):
        read_plan(tmp_path / "binary.toml")
    (tmp_path / "huge.toml").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(PlanFileError, match="larger than 1 MiB"):
        read_plan(tmp_path / "huge.toml")


def test_a_plan_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('[federation]\nname = "heart"\n')
    assert read_plan(tmp_path / "plan.toml").federation.name == "heart"


durations = st.sampled_from(["500ms", "90s", "30m", "1h", "1d", "2w"])
plans = st.fixed_dictionaries(
    {
        "federation": st.fixed_dictionaries(
            {"name": st.text("abc-._9", min_size=1, max_size=10), "rounds": st.integers(1, 99)},
            optional={"sites": st.text(max_size=5), "every": durations},
        ),
        "selection": st.fixed_dictionaries(
            {"fraction": st.floats(0.01, 1)},
            optional={
                "strategy": st.sampled_from(["random", "fair"]),
                "require": st.lists(st.just("memory_gb >= 16"), max_size=2),
                "spread": st.lists(st.text(max_size=4), max_size=2),
            },
        ),
        "strategy": st.fixed_dictionaries({}, optional={"clip": st.floats(1e-3, 1e9)}),
        "round": st.fixed_dictionaries({}, optional={"duration": durations}),
    }
)


@given(plans)
def test_a_plan_reads_back_as_it_was_written(values: dict[str, object]) -> None:
    try:
        plan = Plan.model_validate(values)
    except ValueError:
        return  # lone surrogates and the like are not text
    again = parse_plan(write_plan(plan))
    assert again == plan
    assert again.digest == plan.digest


def test_the_digest_covers_every_key_but_where_the_plan_runs() -> None:
    plan = parse_plan("[federation]\nname = 'a'\n")
    here = parse_plan("[federation]\nname = 'a'\nsites = 'data/*.csv'\n")
    there = parse_plan("[federation]\nname = 'a'\nserver = 'https://fl.example.org'\n")
    assert plan.digest == here.digest == there.digest
    assert plan.digest != parse_plan("[federation]\nname = 'b'\n").digest
    assert plan.digest != parse_plan("[federation]\nname = 'a'\nquorum = 4\n").digest


def test_the_digest_of_the_default_plan_changes_only_on_purpose() -> None:
    expected = "9fcdb8d5d4d7889291777d759b25724eecb75316b4312f160fb79c65dc3471f3"
    assert Plan().digest.hex() == expected


def test_defaults_never_change_their_meaning() -> None:
    """They are left out of the digest: a changed default would change old plans unseen. A new
    key is added here with a default that means what plans without it meant."""
    values = Plan().model_dump(mode="json")
    text = json.dumps(values, sort_keys=True).encode()
    assert sha256(text).hexdigest()[:16] == "1cc65fc95272828b"


@pytest.mark.parametrize("name", ["../../evil", "a/b", "", "a b", ".hidden", "x" * 65])
def test_a_name_cannot_lead_anywhere(name: str) -> None:
    with pytest.raises(WrongTypeError):
        parse_plan(f"[federation]\nname = '{name}'\n")


def test_a_key_outside_its_section_is_sent_home() -> None:
    with pytest.raises(UnknownKeyError) as caught:
        parse_plan("rounds = 3\n")
    assert caught.value.hint == "rounds belongs under [federation]"


def test_a_plan_comes_back_from_its_blob() -> None:
    plan = parse_plan("[federation]\nquorum = 4\n[selection]\nrequire = ['gpu == true']\n")
    assert Plan.from_canonical(plan.canonical()) == plan
    for damaged in (b"", b"consortium/plan/v1\n{", plan.canonical() + b" "):
        with pytest.raises(WrongTypeError):
            Plan.from_canonical(damaged)


def test_a_plan_compiles_to_the_terms_of_the_requirements() -> None:
    terms = Plan().terms(LOSS)
    assert (terms.rounds, terms.quorum, terms.wait_for, terms.target) == (100, 3, 3, 0)
    assert (terms.fraction_ppm, terms.overselect_ppm) == (PPM // 2, PPM)
    assert (terms.duration_ms, terms.extension_ms) == (3_600_000, 1_800_000)
    assert (terms.max_extensions, terms.seen_within_ms) == (1, 86_400_000)
    assert (terms.close, terms.selection) == (Close.ALL_OR_DEADLINE, Selection.RANDOM)
    assert (terms.gate_base_ppm, terms.gate_best_ppm, terms.gate_window) == (950_000, 900_000, 5)
    assert (terms.norm_factor, terms.conditions, terms.evaluation_quorum) == (10, (), 3)
    assert terms.is_gated
    assert terms.judged_by == "loss"


def test_a_clip_replaces_the_rule_of_ten_medians() -> None:
    assert parse_plan("[strategy]\nclip = 1.0\n").terms(LOSS).norm_factor == 0


def test_without_evaluation_there_is_no_gate() -> None:
    terms = parse_plan("[evaluation]\nenabled = false\n").terms(())
    assert (terms.judged_by, terms.is_gated, terms.evaluation_quorum) == ("", False, 0)


def test_the_mobile_preset_asks_for_battery_and_wifi() -> None:
    plan = parse_plan("[selection]\npreset = 'mobile'\nrequire = ['os == \"linux\"']\n")
    assert plan.conditions() == (
        Condition("os", Comparison.EQUAL, "linux"),
        Condition("battery", Comparison.GREATER, 0.3),
        Condition("network", Comparison.EQUAL, "wifi"),
    )


@pytest.mark.parametrize("text", ["[evaluation]\nmetric = 'auroc'", "[stop]\nloss_below = 0.1"])
def test_a_metric_that_the_task_does_not_report_is_refused(text: str) -> None:
    metrics = (Metric("rmse", higher_is_better=False),)
    with pytest.raises(ImpossiblePlanError, match="does not report") as caught:
        parse_plan(text).terms(metrics)
    assert "rmse" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a == 3", Condition("a", Comparison.EQUAL, 3)),
        ("a != -3", Condition("a", Comparison.UNEQUAL, -3)),
        ("a<0.5", Condition("a", Comparison.LESS, 0.5)),
        ("a <= true", Condition("a", Comparison.AT_MOST, True)),
        ("region == 'eu west'", Condition("region", Comparison.EQUAL, "eu west")),
    ],
)
def test_conditions_are_read(text: str, expected: Condition) -> None:
    assert parse_condition(text) == expected


@pytest.mark.parametrize("text", ["", "1", "h", "1.5h", "-1h", "1h30m", "9999999999s"])
def test_bad_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration is"):
        parse_duration_ms(text)


def test_plans_made_in_python_are_checked_too() -> None:
    plan = Plan.model_validate({"federation": {"quorum": 9}, "selection": {"target": 2}})
    with pytest.raises(ImpossiblePlanError, match="quorum 9"):
        plan.check()


def test_guarantees_say_what_is_not_protected() -> None:
    told = " ".join(Plan().guarantees())
    assert "no differential privacy" in told
    assert "sees every site's update in the clear" in told
    assert "how many records" in told
    few = " ".join(parse_plan("[federation]\nquorum = 2\n").guarantees())
    assert "subtract its own update" in few
    assert "one site's update" in " ".join(parse_plan("[federation]\nquorum = 1\n").guarantees())
    clipped = " ".join(parse_plan("[strategy]\nclip = 1.0\nweight = 'uniform'\n").guarantees())
    assert "not privacy" in clipped
    assert "how many records" not in clipped
    ungated = " ".join(parse_plan("[evaluation]\ngate = false\n").guarantees())
    assert "no gate" in ungated
