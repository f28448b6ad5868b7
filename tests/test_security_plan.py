"""[security] in a plan: what is refused, what both ends compute from it, what is promised."""

from __future__ import annotations

import numpy as np
import pytest

from consortium.core.terms import Masking, Metric
from consortium.crypto.secure_sum.graph import threshold_for, tolerated_for
from consortium.errors import (
    ImpossiblePlanError,
    InternalError,
    PlanError,
    UnsupportedPlanError,
)
from consortium.model import MASKED, Layout
from consortium.plan import Plan, parse_plan, write_plan
from consortium.plan.noise import resolved
from consortium.plan.promises import ADJACENCY, AGAINST, HIDDEN, simulated_promises
from consortium.plan.scores import score_bounds
from consortium.plan.security import (
    honest_sites,
    masked_form,
    most_sites,
    tolerated,
    tolerated_anyway,
)
from consortium.plan.signal import signal_of
from consortium.update.ring import bits_for

LAYOUT = Layout.of({"w": np.zeros((30, 4), np.float32), "b": np.zeros(4, np.float32)})
SIZE = LAYOUT.size
MASKS = "[security]\nsecure_aggregation = true\n"
COHORT = "[federation]\nquorum = 7\n[selection]\ntarget = 10\n"
CLIPPED = '[strategy]\nclip = 2.0\nweight = "uniform"\n'
QUIET = "[evaluation]\nenabled = false\ngate = false\n"
UNGATED = "[evaluation]\nenabled = true\ngate = false\n"
SCORED = f"{UNGATED}bound = 20.0\n"
GOOD = COHORT + CLIPPED + QUIET + MASKS
NOISED = f'{COHORT}{MASKS}[privacy]\nunit = "site"\nepsilon = 4.0\n'


def sized(target: int, quorum: int, text: str = GOOD) -> str:
    sizes = f"[federation]\nquorum = {quorum}\n[selection]\ntarget = {target}\n"
    return text.replace(COHORT, sizes)


def test_a_masked_plan_is_read_and_written() -> None:
    plan = parse_plan(GOOD)
    assert plan.is_masked and not plan.has_noise_shares
    assert parse_plan(write_plan(plan)) == plan
    assert plan.digest != parse_plan(COHORT + CLIPPED + QUIET).digest
    assert parse_plan(f'{GOOD}phase = "5m"\n').terms(()).masking == Masking(300_000)
    assert plan.terms((), is_simulated=True).masking is None
    assert parse_plan(COHORT).terms((Metric("loss", False),)).masking is None


# ---- what is refused ----------------------------------------------------------------

REFUSED = [
    # text, words of the message, of the hint
    ("[security]\nbits = 20\n", "bits has no effect without masks", "secure_aggregation = true"),
    ('[security]\nphase = "9s"\n', "phase has no effect", "secure_aggregation = true"),
    (
        f'{COHORT}[privacy]\nunit = "site"\nepsilon = 4.0\nnoise_at = "sites"\n',
        "a small share of noise",
        'unit = "local"',
    ),
    (
        f'{COHORT}[privacy]\nunit = "site"\nepsilon = 4.0\ncolluding = 2\n',
        "colluding has no effect without masks",
        "secure_aggregation",
    ),
    (f'{GOOD}phase = "0s"\n', "phase is zero", '"60s"'),
    (GOOD.replace("weight", 'rule = "median"\nweight'), "nobody sees one", 'rule = "mean"'),
    (
        GOOD.replace("weight", 'anomalies = "exclude"\nweight'),
        "what stands out cannot be found",
        'anomalies = "keep"',
    ),
    (f"{GOOD}[compression]\nbits = 4\n", "every site sends all of them", "take [compression] out"),
    (
        f'{GOOD}[compression]\nkeep = 0.1\nby = "random"\n',
        "every site sends all of them",
        "bits in [security]",
    ),
    (GOOD.replace("quorum = 7", "quorum = 2"), "of a sum of 2", "quorum = 3"),
    (GOOD.replace("target = 10", "fraction = 0.5"), "most sites that are ever", "target = 7"),
    (GOOD.replace("quorum = 7", "quorum = 6"), "two thirds of them, 7", "quorum = 7"),
    (
        GOOD.replace("target = 10", "target = 10\noverselect = 1.2"),
        "up to 12 sites",
        "quorum = 8, or a smaller target",
    ),
    (
        GOOD.replace("target = 10", "target = 10\noverselect = 2.0"),
        "overselect asks 20 sites",
        "overselect = 1.2",
    ),
    (f"{GOOD}[asynchronous]\nbuffer = 7\n", "without a barrier", "take [asynchronous] out"),
    (f'{GOOD}[round]\nclose = "quorum"\n', "taken back by the others", "all_or_deadline"),
    (GOOD.replace("clip = 2.0\n", ""), "follows from a clip", "clip = 1.0"),
    (GOOD.replace('"uniform"', '"samples"'), "nothing bounds this one", 'weight = "uniform"'),
    (GOOD.replace('weight = "uniform"\n', ""), "nothing bounds this one", 'weight = "uniform"'),
    (GOOD.replace('"uniform"', '"sqrt"'), "nothing bounds this one", "weight_cap"),
    (f"{GOOD}bits = 30\n", "the sum of 10 sites can wrap with 30 bits", "bits = 28 or less"),
    (GOOD.replace("weight", 'name = "scaffold"\nweight'), "sends control variates", "fedprox"),
    (GOOD.replace("weight", 'name = "fednova"\nweight'), "numbers of local steps", "fedavg"),
    (GOOD.replace(QUIET, ""), "too late for a gate", "gate = false"),
    (GOOD.replace("enabled = false\ngate = false", "enabled = true"), "too late", "gate = false"),
    (GOOD.replace(QUIET, UNGATED), "`loss` is summed under masks", "bound = 10.0"),
    (
        GOOD.replace(QUIET, f'{UNGATED}metric = "cost"\n'),
        "`cost` is summed under masks, and nothing bounds it",
        "bound = 10.0",
    ),
    (
        GOOD.replace(QUIET, f"{SCORED}records_cap = 200_000_000\n"),
        "the sum of 10 sites has no room for 200,000,000 test records",
        "records_cap = 134217727",
    ),
    (GOOD.replace(QUIET, f"{SCORED}quorum = 7\n"), "quorum has no effect", "leave quorum out"),
    (
        GOOD.replace(QUIET, f'{SCORED}deadline = "5m"\n'),
        "deadline has no effect",
        "leave deadline out",
    ),
    (
        f'{GOOD.replace(QUIET, SCORED)}[privacy]\nunit = "site"\nepsilon = 4.0\nclip = 2.0\n',
        "does not hide what one site adds to it",
        'test_records = "public"',
    ),
    (
        f'{COHORT}{MASKS}[privacy]\nunit = "local"\nepsilon = 4.0\n[strategy]\nclip = 1.0\n',
        "longer than a clip",
        'unit = "site"',
    ),
    (
        f'{GOOD}[privacy]\nunit = "record"\nepsilon = 4.0\nnoise_at = "sites"\n',
        'noise_at has no effect with unit = "record"',
        'unit = "site"',
    ),
    (
        f'{NOISED}noise_at = "coordinator"\ncolluding = 1\n',
        "colluding is about noise that sites share",
        'noise_at = "sites"',
    ),
    (f"{NOISED}colluding = 3\n", "do not stand more than 2", "colluding = 2 or less"),
    (f"{NOISED}noise_multiplier = 9e5\n", "can wrap", "fewer where noise is added"),
]


@pytest.mark.parametrize(("text", "says", "hint"), REFUSED)
def test_what_does_not_go_together_is_refused(text: str, says: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert says in caught.value.message and hint in caught.value.hint


def test_all_that_masks_need_is_told_at_once() -> None:
    with pytest.raises(ImpossiblePlanError, match="the most sites") as caught:
        parse_plan(f"{MASKS}[evaluation]\nbound = 20.0\n[federation]\nquorum = 7\n")
    first, *others = caught.value.hint.splitlines()
    assert first.startswith("target = 7")
    assert [line.partition(": ")[0] for line in others] == [
        "also, strategy.clip",
        "also, strategy.weight",
        "also, evaluation.gate",
    ]
    mended = (
        "[federation]\nquorum = 7\n[selection]\ntarget = 7\n[strategy]\nclip = 1.0\n"
        'weight = "uniform"\n[evaluation]\nbound = 20.0\ngate = false\n'
    )
    assert parse_plan(mended + MASKS).is_masked


def test_noised_scores_under_masks_are_something_that_this_version_does_not_have() -> None:
    """Each site's noise on its counts is one release of its own: nothing that is summed without
    being charged leaves a site."""
    asked = f'{GOOD.replace(QUIET, UNGATED)}metric = "accuracy"\n'.replace(MASKS, "")
    with pytest.raises(UnsupportedPlanError) as caught:
        parse_plan(f'{asked}{MASKS}[privacy]\nunit = "record"\nepsilon = 4.0\n')
    assert caught.value.code == "E0116" and 'test_records = "public"' in caught.value.hint


def test_a_private_plan_that_asks_for_no_scores_has_none_under_masks() -> None:
    for unit in ("record", "site"):
        plan = parse_plan(
            f'{COHORT}{MASKS}[privacy]\nunit = "{unit}"\nepsilon = 4.0\n[strategy]\nclip = 1.0\n'
        )
        assert not plan.has_scored_sums


@pytest.mark.parametrize("unit", ["record", "site"])
def test_scores_on_public_test_records_go_into_sums_of_private_plans(unit: str) -> None:
    text = f'{GOOD.replace(QUIET, SCORED)}[privacy]\nunit = "{unit}"\nepsilon = 40.0\nclip = 2.0\n'
    plan = resolved(parse_plan(f'{text}test_records = "public"\n'))
    assert plan.has_scored_sums and not plan.has_noised_scores
    assert plan.ring(LAYOUT, (Metric("loss", False),)).extra == 3
    assert plan.budget is not None and len(plan.budget.costs) == (2 if unit == "record" else 1)
    assert "NOT PROTECTED: test records, which the plan says are public." in plan.guarantees()


# ---- scores -------------------------------------------------------------------------

METRICS = (Metric("loss", False), Metric("accuracy", True))


def test_a_masked_plan_with_scores_says_so_in_its_terms() -> None:
    plan = parse_plan(GOOD.replace(QUIET, SCORED))
    for terms in (plan.terms(METRICS), plan.terms(METRICS, is_simulated=True)):
        assert terms.has_scored_sums and terms.are_sound() and not terms.has_evaluation
        assert (terms.judged_by, terms.is_gated, terms.evaluation_quorum) == ("loss", False, 0)
    assert parse_plan(write_plan(plan)) == plan
    assert not parse_plan(GOOD).terms(METRICS).has_scored_sums


def test_bounds_are_public_and_follow_from_the_plan() -> None:
    plan = parse_plan(GOOD.replace(QUIET, f"{SCORED}records_cap = 500\n"))
    assert score_bounds(plan, METRICS) == (10_000.0, 500.0, 500.0)
    ring = plan.ring(LAYOUT, METRICS)
    assert ring.metrics == (10_000.0, 500.0, 500.0) and ring.extra == 4
    assert plan.form(LAYOUT, 1, METRICS).size == plan.row_form(LAYOUT, METRICS).size == SIZE + 4
    fractions = parse_plan(GOOD.replace(QUIET, f'{UNGATED}metric = "accuracy"\n'))
    assert score_bounds(fractions, METRICS[1:]) == (10_000.0, 10_000.0)


def test_a_metric_of_the_task_that_nothing_bounds_is_refused() -> None:
    """The plan looks at accuracy; that the task reports a loss too, only its terms know."""
    plan = parse_plan(GOOD.replace(QUIET, f'{UNGATED}metric = "accuracy"\n'))
    assert plan.terms(METRICS[1:]).has_scored_sums
    with pytest.raises(ImpossiblePlanError, match="`loss`") as caught:
        plan.terms(METRICS)
    assert "bound = 10.0" in caught.value.hint


def test_nobody_makes_a_ring_for_scores_without_the_metrics() -> None:
    plan = parse_plan(GOOD.replace(QUIET, SCORED))
    for make in (plan.ring, plan.row_form, lambda layout: plan.form(layout, 1)):
        with pytest.raises(InternalError, match="metrics"):
            make(LAYOUT)


def test_a_bound_without_masks_changes_nothing() -> None:
    plan = parse_plan(COHORT + SCORED)
    assert score_bounds(plan, METRICS) == () and not plan.has_scored_sums


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("weight", 'name = "fedprox"\nweight'),
        GOOD.replace("weight", 'name = "fedadam"\nweight'),
        GOOD.replace('"uniform"', '"capped"\nweight_cap = 50.0'),
        GOOD.replace('"uniform"', '"sqrt"\nweight_cap = 50.0'),
        GOOD.replace("quorum = 7", "quorum = 9").replace(
            "target = 10", "target = 10\noverselect = 1.2"
        ),
        f'{GOOD}[privacy]\nunit = "record"\nepsilon = 4.0\n',
        NOISED,
        f'{NOISED}noise_at = "coordinator"\n',
        f"{NOISED}colluding = 0\n",
    ],
)
def test_what_goes_together_is_not(text: str) -> None:
    plan = parse_plan(text)
    assert resolved(plan).ring(LAYOUT).extra == 1


@pytest.mark.parametrize("target", [3, 4, 5, 9, 10, 99, 150])
def test_a_quorum_is_two_thirds_of_the_most_that_take_part(target: int) -> None:
    least = max(3, threshold_for(target))
    plan = parse_plan(sized(target, least))
    assert most_sites(plan) == target
    if least > 3:
        with pytest.raises(ImpossiblePlanError):
            parse_plan(sized(target, least - 1))


def test_a_plan_that_was_not_checked_has_no_ring() -> None:
    plan = Plan.model_validate({"security": {"secure_aggregation": True}})
    with pytest.raises(ImpossiblePlanError, match="a clip and a target"):
        plan.ring(LAYOUT)


# ---- what both ends compute ---------------------------------------------------------


@pytest.mark.parametrize(("target", "bits"), [(3, 24), (10, 24), (100, 24), (150, 24), (1000, 22)])
def test_bits_are_those_of_a_float_where_the_cohort_leaves_room(target: int, bits: int) -> None:
    text = sized(target, max(3, threshold_for(target)))
    ring = parse_plan(text).ring(LAYOUT)
    assert (ring.bits, ring.clip, ring.cohort) == (bits, 2.0, target)
    assert parse_plan(f"{text}bits = 8\n").ring(LAYOUT).bits == 8 < bits_for(target)


def test_the_file_has_one_tensor_and_the_row_one_number_more() -> None:
    plan = parse_plan(GOOD)
    form = plan.form(LAYOUT, 3)
    assert form == masked_form(plan, LAYOUT) and form.is_masked
    assert [(spec.name, spec.shape, spec.dtype) for spec in form.specs] == [
        (MASKED, (SIZE + 1,), "U32")
    ]
    assert plan.row_form(LAYOUT).dtype == np.float64
    assert not parse_plan(COHORT).form(LAYOUT, 3).is_masked


def test_sites_share_the_noise_that_the_fewest_honest_survivors_need() -> None:
    plan = resolved(parse_plan(NOISED))
    sigma = plan.privacy.noise_multiplier
    ring, share = plan.ring(LAYOUT), plan.noise_share(LAYOUT)
    assert sigma is not None and share is not None
    assert (tolerated(plan), honest_sites(plan)) == (2, 5)
    together = share.sigma * np.sqrt(5)
    assert together == pytest.approx(np.hypot(sigma * ring.longest(SIZE), 2.0), rel=1e-11)
    assert together > sigma * ring.longest(SIZE)
    assert 10 * (ring.most + share.most) < 2**31 and ring.spare == share.most


def test_more_colluding_sites_mean_more_noise_and_none_the_least() -> None:
    shares = []
    for text in (f"{NOISED}colluding = 0\n", f"{NOISED}colluding = 1\n", NOISED):
        share = resolved(parse_plan(f"{text}noise_multiplier = 11.0\n")).noise_share(LAYOUT)
        assert share is not None
        shares.append(share.sigma)
    assert shares == sorted(shares)
    assert shares[2] / shares[0] == pytest.approx(np.sqrt(7 / 5))


def test_of_more_than_a_hundred_sites_a_fifth_may_collude_and_fewer_with_one_that_lies() -> None:
    plan = parse_plan(sized(200, 134, NOISED))
    assert (tolerated(plan), tolerated_anyway(plan)) == (26, 18)
    told = "\n".join(resolved(plan).guarantees())
    assert "20 % of a round's sites work with a coordinator that keeps to the protocol" in told
    assert "lays nobody bare with at most 18 of them, but may see sums of fewer than 134" in told
    assert f"{AGAINST['contribution']}, while the coordinator keeps to the protocol" in told


@pytest.mark.parametrize(
    ("sites", "quorum", "words"),
    [(4, 3, "while no site works"), (6, 4, "while at most one site works"), (100, 67, "most 22")],
)
def test_up_to_a_hundred_fewer_than_a_third_may_work_with_a_coordinator_that_lies(
    sites: int, quorum: int, words: str
) -> None:
    plan = parse_plan(sized(sites, quorum))
    assert tolerated(plan) == tolerated_anyway(plan) == (quorum - 1) // 3
    # Whoever is invited, as long as the plan allows it.
    assert all(tolerated(plan) <= tolerated_for(some) for some in range(quorum, sites + 1))
    (told,) = [line for line in plan.guarantees() if line.startswith("HIDDEN")]
    assert "also if the coordinator lies to them" in told and words in told
    assert f"fewer than a third of the {quorum} that are summed at least" in told


def test_noise_that_was_not_computed_makes_no_ring() -> None:
    with pytest.raises(ImpossiblePlanError, match="not computed"):
        parse_plan(NOISED).ring(LAYOUT)


def test_noise_of_sites_is_paid_when_they_are_invited_from_an_account_of_its_own() -> None:
    plan, central = (
        resolved(parse_plan(text)) for text in (NOISED, f'{NOISED}noise_at = "coordinator"\n')
    )
    assert plan.budget is not None and central.budget is not None
    assert (plan.budget.unit, plan.budget.is_spent_at_sites) == ("contribution", True)
    assert (central.budget.unit, central.budget.is_spent_at_sites) == ("site", False)
    assert plan.budget.account != central.budget.account
    assert plan.budget.costs == central.budget.costs
    assert plan.budget.unit in HIDDEN and plan.budget.unit in ADJACENCY


def test_the_signal_counts_the_noise_of_all_who_come() -> None:
    plan, central = (
        resolved(parse_plan(text)) for text in (NOISED, f'{NOISED}noise_at = "coordinator"\n')
    )
    more = signal_of(central, SIZE).ratio, signal_of(plan, SIZE).ratio
    assert more[0] is not None and more[1] is not None
    assert more[0] / more[1] == pytest.approx(np.sqrt(10 / 5))


# ---- what is promised ---------------------------------------------------------------


def test_a_masked_plan_says_what_is_seen_and_what_is_not() -> None:
    told = "\n".join(parse_plan(GOOD).guarantees())
    for words in (
        "sees the sum of the updates",
        "which sites took part",
        "HIDDEN: single updates, what each site weighs",
        "sign who is in it, and help to take the masks off only when two thirds of all",
        "while at most 2 sites work with it",
        "no anomaly filter",
        "backdoor",
        "no differential privacy in this plan",
        "what an honest site does",
    ):
        assert words in told, words
    assert "in the clear" not in told and "no secure aggregation" not in told
    capped = parse_plan(GOOD.replace('"uniform"', '"sqrt"\nweight_cap = 50.0'))
    assert not any("how many records each site" in line for line in capped.guarantees())


def test_noise_under_masks_is_promised_against_the_coordinator() -> None:
    told = "\n".join(resolved(parse_plan(NOISED)).guarantees())
    for words in (
        HIDDEN["contribution"],
        AGAINST["contribution"],
        "sees the sum, with noise,",
        "The shares of 5 sites make noise of",
        "2 may tell theirs",
        "whether a site takes part",
    ):
        assert words in told, words
    assert "coordinator included" in AGAINST["contribution"]


def test_noise_at_the_coordinator_says_that_it_sees_the_exact_sum() -> None:
    told = "\n".join(resolved(parse_plan(f'{NOISED}noise_at = "coordinator"\n')).guarantees())
    assert "not against the coordinator, who sees the exact sum" in told
    assert "a coordinator that leaves the noise away" in told


def test_a_simulation_says_that_it_leaves_the_masks_out() -> None:
    assert "cancel exactly" in simulated_promises(parse_plan(GOOD))[0]
    both = simulated_promises(parse_plan(NOISED))
    assert len(both) == 2 and "protects nobody" in both[1]
