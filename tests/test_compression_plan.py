"""[compression] in a plan: what it compiles to, and what does not go together with it."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from consortium.drive.inspect import inventory_text
from consortium.errors import ImpossiblePlanError, WrongTypeError
from consortium.model import Form, Layout
from consortium.packing.packed import Packing, Sent
from consortium.plan import Plan, parse_plan, write_plan
from consortium.plan.check import problems
from consortium.site.policy import update_bytes
from consortium.site.review import rules_in_words
from consortium.tasks import Inventory
from consortium.tensors import TensorSpec

LAYOUT = Layout((TensorSpec("w", (10_000,), "F32"),))


def plan_of(text: str) -> Plan:
    return parse_plan(f"[compression]\n{text}")


def test_a_plan_without_the_section_compresses_nothing_and_keeps_its_digest() -> None:
    assert Plan().packing is None
    assert Plan().form(LAYOUT, 3) == Form((("step", 10_000),), np.dtype(np.float32))
    assert plan_of("").digest == plan_of("bits = 0\nkeep = 1.0").digest == Plan().digest
    assert plan_of("bits = 4").digest != Plan().digest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bits = 4", Packing(4)),
        ("bits = 8", Packing(8)),
        ("keep = 0.01", Packing(0, Sent.TOP, 0.01)),
        ('bits = 4\nkeep = 0.1\nby = "top"', Packing(4, Sent.TOP, 0.1)),
    ],
)
def test_what_it_compiles_to(text: str, expected: Packing) -> None:
    plan = plan_of(text)
    assert plan.packing == expected
    assert plan.form(LAYOUT, 3) == plan.form(LAYOUT, 4)
    assert parse_plan(write_plan(plan)) == plan


def test_drawn_places_are_other_ones_in_another_round_or_under_another_plan() -> None:
    plan, other = plan_of('keep = 0.1\nby = "random"'), plan_of('keep = 0.2\nby = "random"')
    packings = [one.form(LAYOUT, number).packing for one in (plan, other) for number in (1, 2)]
    assert len({packing.draw for packing in packings if packing is not None}) == 4


def test_a_site_is_told_the_compressed_size() -> None:
    assert update_bytes(plan_of("bits = 4"), LAYOUT) < 0.14 * update_bytes(Plan(), LAYOUT)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('keep = 0.1\nby = "random"\nerror_feedback = true', "; the rest is added to the next"),
        ("bits = 4", "all numbers, rounded to 4 bits; the rest is added to the next update"),
        ("keep = 0.015\nerror_feedback = false", "1.5 % of the numbers, the largest"),
        ('bits = 8\nkeep = 0.5\nby = "random"', "50 % of the numbers, drawn by a public rule, r"),
        ('keep = 0.5\nby = "random"\n[strategy]\nclip = 1.0', "drawn by a public rule"),
    ],
)
def test_it_is_told_in_words(text: str, words: str) -> None:
    assert words in plan_of(text).compression.in_words()


def test_a_site_is_told_what_leaves_and_what_stays() -> None:
    text = inventory_text(Inventory(LAYOUT.specs), plan_of("bits = 4"))
    assert "LEAVES  of these, 5,160 bytes: updates are compressed: all numbers, rounded" in text
    assert "STAYS   40,000 bytes: what compression left of an update, until it is sent" in text
    without = plan_of("bits = 4\nerror_feedback = false")
    assert "compression left" not in inventory_text(Inventory(LAYOUT.specs), without)
    assert plan_of("bits = 4").compression.in_words() in rules_in_words(plan_of("bits = 4"))
    assert not any("compress" in line for line in rules_in_words(Plan()))


REFUSALS = [
    ("error_feedback = true", "error_feedback", "error_feedback has no effect", "bits = 4"),
    ('by = "random"', "by", "by has no effect: nothing is compressed", "bits = 4"),
    ('bits = 4\nby = "random"', "by", "by has no effect with keep = 1", "keep = 0.1"),
    ("bits = 4\nkeep = 0.34", "keep", "0.34 of the numbers and where each belongs", "keep = 0.1"),
    ("keep = 0.81", "keep", "are more bytes than all of them", 'by = "random"'),
    (
        "bits = 4\n[strategy]\nclip = 1.0",
        "error_feedback",
        "error feedback sends later what was held back",
        "error_feedback = false",
    ),
    (
        'bits = 8\n[strategy]\nname = "scaffold"',
        "bits",
        "variates are sent beside the step",
        'name = "fedavg"',
    ),
    (
        'keep = 0.1\n[strategy]\nrule = "median"',
        "by",
        'rule = "median" looks at each number by itself',
        'by = "random"',
    ),
    (
        'keep = 0.1\nby = "random"\n[asynchronous]\nbuffer = 4',
        "by",
        "a buffer holds updates of several rounds",
        'by = "top"',
    ),
]


@pytest.mark.parametrize(("text", "key", "message", "remedy"), REFUSALS)
def test_what_cannot_be_kept_is_refused_with_a_remedy(
    text: str, key: str, message: str, remedy: str
) -> None:
    with pytest.raises(ImpossiblePlanError) as refused:
        plan_of(text)
    assert message in refused.value.message and remedy in refused.value.hint
    (problem,) = problems(Plan.model_validate(_values(text)))
    assert problem.key == ("compression", key)


def _values(text: str) -> dict[str, object]:
    return tomllib.loads(f"[compression]\n{text}")


@pytest.mark.parametrize(
    "text",
    [
        "bits = 4\nerror_feedback = false\n[strategy]\nclip = 1.0",
        'bits = 4\n[strategy]\nname = "fednova"',
        'keep = 0.1\nby = "random"\n[strategy]\nrule = "median"',
        'keep = 0.1\n[strategy]\nrule = "geometric_median"',
        "bits = 4\nkeep = 0.3",
        "bits = 4\nkeep = 0.05\n[asynchronous]\nbuffer = 4",
    ],
)
def test_what_goes_together(text: str) -> None:
    assert plan_of(text).packing is not None


@pytest.mark.parametrize("text", ["bits = 5", "bits = true", "keep = 0", "keep = 1.5", 'by = "x"'])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(WrongTypeError):
        plan_of(text)
