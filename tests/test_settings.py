"""Keys of a plan from outside: values of every kind, the grid, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.errors import ConsortiumError, ImpossiblePlanError, UsageError
from consortium.plan import parse_plan
from consortium.plan.settings import DEFAULT, Setting, parse_setting, shown, variants


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("training.lr=0.01", (0.01,)),
        ("training.lr=0.01,1e-3, 1", (0.01, 1e-3, 1)),
        ("training.epochs=1,2", (1, 2)),
        ("evaluation.gate=true,false", (True, False)),
        ("strategy.name=fedavg,fedprox", ("fedavg", "fedprox")),
        ("strategy.name=\"fedavg\",'fedprox'", ("fedavg", "fedprox")),
        ("round.duration=1h,30m", ("1h", "30m")),
        ('personal.layers=["head"]', (["head"],)),
        ('personal.layers=["head"],["head", "tail"],[]', (["head"], ["head", "tail"], [])),
        ("personal.layers=[head],[head, tail]", (["head"], ["head", "tail"])),  # after a shell
        ("personal.layers=[default]", (["default"],)),
        ('selection.require=["memory_gb >= 16"],[]', (["memory_gb >= 16"], [])),
        ("simulation.pace={a = 2.0, b = 1}", ({"a": 2.0, "b": 1},)),
        ("strategy.clip=default,1.0", (DEFAULT, 1.0)),
        (" training.lr = 0.1 ", (0.1,)),
    ],
)
def test_values_are_those_of_a_plan_file(text: str, values: tuple[object, ...]) -> None:
    assert parse_setting(text).values == values


@pytest.mark.parametrize(
    ("text", "code", "message", "hint"),
    [
        ("training.lr", "E0003", "not of the form SECTION.KEY=VALUE", "--set training.lr="),
        ("lr=0.1", "E0003", "not of the form", "did you mean training.lr?"),
        ("epochs=1", "E0003", "not of the form", "training.epochs or personal.epochs"),
        ("training.=1", "E0003", "not of the form", "--set training.lr="),
        ("training.lr=", "E0003", "a value is missing", "--set training.lr="),
        ("training.lr=0.1,", "E0003", "a value is missing", ""),
        ("training.lr=0.1,0.1", "E0003", "a value is there twice", "each value once"),
        ("training.lrr=1", "E0112", "unknown key `lrr` in [training]", "did you mean lr?"),
        ("strategy.lr=1", "E0112", "unknown key `lr` in [strategy]", "did you mean training.lr?"),
        ("trainig.lr=1", "E0112", "unknown section [trainig]", "training"),
        ("training.nothing=default", "E0112", "unknown key `nothing`", "known keys:"),
        ("training.lr=fast", "E0113", "should be a number", "local learning rate"),
        ("training.lr=0.1,-1", "E0113", "--set training.lr=-1: `lr`", "local learning rate"),
        ("training.epochs=1.5", "E0113", "a whole number", ""),
        ("personal.layers=head", "E0113", "a list, such as", ""),
        ("training.lr=nan", "E0113", "finite number", ""),
        ("training.lr=2020-01-01", "E0113", "should be a number", ""),
        ("strategy.name=fedxyz", "E0113", "fedavg", "one of fedavg"),
        ("round.duration=soon", "E0113", "soon", ""),
        ("security.bits=4", "E0113", "greater than or equal to 8", ""),
    ],
)
def test_what_no_plan_could_have_is_refused(text: str, code: str, message: str, hint: str) -> None:
    with pytest.raises(ConsortiumError) as caught:
        parse_setting(text)
    error = caught.value
    told = f"{getattr(error, 'where', '')}: {error.message}"
    assert error.code == code
    assert message in told and "--set" in told
    assert hint in error.hint


def test_the_grid_has_every_combination_in_the_order_told() -> None:
    plan = parse_plan("[training]\nlr = 0.5\nepochs = 3\n[simulation]\nclients = 9\n")
    settings = [parse_setting("training.lr=0.1,default"), parse_setting("strategy.clip=1,2")]
    found = variants(plan, settings)
    assert [one.label for one in found] == [
        "training.lr=0.1 strategy.clip=1",
        "training.lr=0.1 strategy.clip=2",
        "training.lr=default strategy.clip=1",
        "training.lr=default strategy.clip=2",
    ]
    assert [one.plan.training.lr for one in found] == [0.1, 0.1, 0.01, 0.01]
    assert [one.plan.strategy.clip for one in found] == [1, 2, 1, 2]
    assert {one.plan.training.epochs for one in found} == {3}
    assert not any(one.plan.takes_time for one in found)  # clients alone do not
    assert len({one.plan.digest for one in found}) == 4


def test_without_settings_the_plan_is_the_only_variant() -> None:
    plan = parse_plan("[training]\nlr = 0.5\n")
    (only,) = variants(plan, [])
    assert (only.plan, only.settings, only.label) == (plan, (), "")


def test_combinations_are_checked_as_a_whole() -> None:
    plan = parse_plan("[federation]\nquorum = 5\n")
    with pytest.raises(ImpossiblePlanError, match="quorum 5 is above target 3") as caught:
        variants(plan, [parse_setting("selection.target=9,3"), parse_setting("training.lr=1")])
    assert caught.value.where == "--set selection.target=3 --set training.lr=1"


def test_a_key_is_set_once() -> None:
    settings = [parse_setting("training.lr=0.1"), parse_setting("training.lr=0.2")]
    with pytest.raises(UsageError, match="is there twice"):
        variants(parse_plan(""), settings)


@given(st.text(max_size=30))
def test_any_text_is_a_setting_or_one_of_our_errors(text: str) -> None:
    for form in (text, f"training.lr={text}", f"personal.layers=[{text}]"):
        with suppress(ConsortiumError):
            assert isinstance(parse_setting(form), Setting)


@given(st.lists(st.text("abc \"',[]x1.", max_size=8), max_size=3))
def test_what_is_shown_can_be_told_again(layers: list[str]) -> None:
    text = f"personal.layers={shown(layers)}"
    assert parse_setting(text).values == (layers,)
