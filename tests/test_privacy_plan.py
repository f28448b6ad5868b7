"""[privacy] in a plan: what is refused and settled, what is promised, how much noise it takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import consortium as co
from consortium.core.account_facts import Cost, Limits
from consortium.core.terms import Metric
from consortium.drive.lock import Noise, check_lock, make_lock, read_lock, write_lock
from consortium.drive.study import Study, load_study
from consortium.errors import ImpossiblePlanError, VerificationError, WrongTypeError
from consortium.plan import Plan, parse_plan, write_plan
from consortium.plan.noise import epsilon_of_rounds, resolved, total_costs
from consortium.plan.promises import ADJACENCY, AGAINST, HIDDEN, SIMULATED, simulated_promises
from consortium.plan.settings import parse_setting, variants

METRICS = tuple(
    Metric(name, higher_is_better=name != "loss") for name in ("loss", "accuracy", "auroc")
)
TARGET = "[selection]\ntarget = 10\n"
RECORD = '[privacy]\nunit = "record"\nepsilon = 4.0\n'
SITE = f'{TARGET}[privacy]\nunit = "site"\nepsilon = 4.0\n'
LOCAL = '[privacy]\nunit = "local"\nepsilon = 4.0\n'


# ---- what is refused ----------------------------------------------------------------

REFUSED = [
    # text, the line that is pointed at (0: only the file), words of the message, of the hint
    ("[privacy]\nepsilon = 1.0\n", 2, "does not say what is hidden", 'unit = "record"'),
    ("[privacy]\nclip = 2.0\n", 2, "does not say what is hidden", 'unit = "record"'),
    ('[privacy]\nunit = "record"\n', 2, "how much may be learnt", "epsilon = 4.0"),
    (f"{RECORD}epsilon_per_round = 0.5\n", 4, "in two ways", "keep one"),
    (f'{RECORD}level = "strong"\n', 4, "in two ways", "keep one"),
    (
        '[privacy]\nunit = "site"\npreset = "healthcare"\n' + TARGET,
        2,
        "hides one record",
        "take unit or preset out",
    ),
    (
        '[privacy]\nunit = "record"\nepsilon_per_round = 4.0\nweekly = 3.5\n',
        4,
        "one round costs 4, and weekly is 3.5",
        "weekly = 4 or more",
    ),
    (
        '[privacy]\nunit = "record"\nlevel = "weak"\nmonthly = 4.5\n',
        4,
        "one round costs 5, and monthly is 4.5",
        "monthly = 5 or more",
    ),
    (f"{SITE}sampling_rate = 0.1\n", 6, "no effect", 'unit = "record"'),
    (f"{LOCAL}steps = 3\n", 4, "no effect", 'unit = "record"'),
    (f"{LOCAL}records = 100\n", 4, "no effect", 'unit = "record"'),
    (f"{SITE}side_noise = 1.0\n", 6, "no effect", 'unit = "record"'),
    (f"{SITE}[evaluation]\nenabled = true\n", 7, "scores would leave as they are", "public"),
    (f'{LOCAL}[evaluation]\nmetric = "accuracy"\n', 0, "scores would leave", "enabled = false"),
    (f'{RECORD}[evaluation]\nmetric = "auroc"\n', 5, "`auroc` has no bound", '"accuracy"'),
    (f"{RECORD}[evaluation]\nenabled = true\n", 0, "`loss` has no bound", '"accuracy"'),
    (f'{SITE}[strategy]\nweight = "samples"\n', 7, "move the sum without bound", '"uniform"'),
    (f'{SITE}[strategy]\nweight = "sqrt"\n', 7, "move the sum without bound", '"capped"'),
    (f'{SITE}[strategy]\nrule = "median"\n', 7, "`median`", 'rule = "mean"'),
    (f'{SITE}[strategy]\nanomalies = "exclude"\n', 0, "the screen", 'anomalies = "keep"'),
    (f'{SITE}[strategy]\nname = "scaffold"\n', 7, "more than a step", "fedavg"),
    (f'{SITE}[strategy]\nname = "fednova"\n', 7, "more than a step", "fedavg"),
    (f"{SITE}[strategy]\nclip = 2.0\n", 7, "clip is 2 here and 1 in [privacy]", "leave it out"),
    ('[privacy]\nunit = "site"\nepsilon = 4.0\n', 0, "fixed number of sites", "target = 10"),
    (f'{RECORD}[strategy]\nweight = "samples"\n', 5, "how many records", '"uniform"'),
    (f'{LOCAL}[strategy]\nweight = "sqrt"\n', 5, "how many records", '"uniform"'),
    (
        f'{RECORD}[strategy]\nweight = "capped"\nweight_cap = 9.0\n',
        5,
        "how many records",
        'weight = "uniform", no weight_cap',
    ),
    (
        f'{RECORD}[strategy]\nweight = "uniform"\nweight_cap = 9.0\n',
        6,
        "weight_cap has no effect",
        "leave weight_cap out",
    ),
    (f"{RECORD}[asynchronous]\nbuffer = 3\n", 5, "without a barrier", 'unit = "site"'),
    (f'{RECORD}[strategy]\nname = "fednova"\n', 5, "how many steps", "fedavg"),
    (f"{RECORD}[training]\nmax_seconds = 5.0\n", 5, "depends on", "leave max_seconds out"),
    (f"{RECORD}[training]\ngrad_clip = 5.0\n", 5, "depends on", "leave grad_clip out"),
    (f'{LOCAL}[strategy]\nname = "scaffold"\n', 5, "more than a step", "fedavg"),
    (f"{LOCAL}[strategy]\nclip = 1.0\n", 5, "noise comes after the clip", "leave it out here"),
    (f"{SITE}[compression]\nbits = 4\n", 0, "sent later, beyond the clip", "= false"),
    (f"{LOCAL}[compression]\nbits = 4\n", 0, "sent later, beyond the clip", "= false"),
]


@pytest.mark.parametrize(("text", "line", "says", "hint"), REFUSED)
def test_what_would_break_the_promise_is_refused_with_a_remedy(
    text: str, line: int, says: str, hint: str
) -> None:
    with pytest.raises(ImpossiblePlanError) as caught:
        parse_plan(text, "consortium.toml")
    assert says in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 3
    if line:
        assert caught.value.where == f"consortium.toml:{line}"


REMEDIED = [
    RECORD,
    SITE,
    LOCAL,
    '[privacy]\npreset = "healthcare"\n',
    f'{SITE}test_records = "public"\n[evaluation]\nenabled = true\n',
    f'{RECORD}[evaluation]\nmetric = "accuracy"\n',
    f'{RECORD}test_records = "public"\n[evaluation]\nmetric = "auroc"\n',
    f'{SITE}[strategy]\nweight = "capped"\nweight_cap = 100.0\n',
    f"{SITE}[strategy]\nclip = 1.0\n",
    f"{SITE}[asynchronous]\nbuffer = 3\n",
    f"{LOCAL}[compression]\nbits = 4\nerror_feedback = false\n",
    f"{RECORD}[compression]\nbits = 4\n",
    '[privacy]\nunit = "none"\nepsilon = 4.0\n',  # switched off, and everything else kept
    '[privacy]\nunit = "site"\nnoise_multiplier = 2.0\n' + TARGET,
]


@pytest.mark.parametrize("text", REMEDIED)
def test_what_the_remedies_say_is_taken(text: str) -> None:
    parse_plan(text).check()


@pytest.mark.parametrize(
    "text",
    ["epsilon = 0.0", "delta = 0.0", "delta = 1.0", "sampling_rate = 1.5", "unit = 'patient'"],
)
def test_values_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(WrongTypeError):
        parse_plan(f"[privacy]\n{text}\n")


# ---- what is settled ----------------------------------------------------------------


@pytest.mark.parametrize("text", [RECORD, SITE, LOCAL])
def test_sites_count_alike_and_nobody_tells_scores(text: str) -> None:
    plan = parse_plan(text)
    assert plan.strategy.weight == "uniform"
    assert not plan.evaluation.enabled and not plan.evaluation.gate


def test_only_a_sum_that_is_noised_needs_a_clip_of_updates() -> None:
    assert parse_plan(SITE.replace("epsilon", "clip = 0.5\nepsilon")).strategy.clip == 0.5
    assert parse_plan(RECORD).strategy.clip is None
    assert parse_plan(LOCAL).strategy.clip is None  # the noise clips by itself


def test_scores_that_were_asked_for_stay() -> None:
    assert parse_plan(f'{RECORD}[evaluation]\nmetric = "accuracy"\n').evaluation.enabled
    assert parse_plan(f'{SITE}test_records = "public"\n').evaluation.enabled


def test_a_plan_without_privacy_is_left_alone() -> None:
    assert Plan().strategy.weight is None and Plan().evaluation.enabled
    assert Plan().budget is None


def test_with_noised_scores_only_what_has_a_bound_leaves() -> None:
    plan = resolved(parse_plan(f'{RECORD}[evaluation]\nmetric = "accuracy"\n'))
    assert [metric.name for metric in plan.reported(METRICS)] == ["accuracy"]
    assert plan.terms(METRICS).judged_by == "accuracy"
    public = parse_plan(f'{RECORD}test_records = "public"\n')
    assert public.reported(METRICS) == METRICS


@pytest.mark.parametrize("text", REMEDIED)
def test_a_settled_plan_reads_back_as_it_was(text: str) -> None:
    for plan in (parse_plan(text), resolved(parse_plan(text))):
        assert Plan.from_canonical(plan.canonical()) == plan
        again = parse_plan(write_plan(plan))
        assert again == plan and again.digest == plan.digest


def test_what_was_settled_does_not_stay_when_privacy_is_taken_out() -> None:
    plan = parse_plan(f'{RECORD}[strategy]\nname = "fedavg"\n[evaluation]\nquorum = 3\n')
    off, on = (one.plan for one in variants(plan, [parse_setting("privacy.unit=none,record")]))
    assert off.strategy.weight is None and off.evaluation.enabled and off.evaluation.gate
    assert on.strategy.weight == "uniform" and not on.evaluation.enabled


def test_what_is_settled_is_in_the_digest() -> None:
    """Whoever approves the digest approves that sites count alike."""
    values = json.loads(parse_plan(RECORD).canonical().partition(b"\n")[2])
    assert values["strategy"] == {"weight": "uniform"}
    assert values["evaluation"] == {"enabled": False, "gate": False}


# ---- presets, levels, limits --------------------------------------------------------


def test_the_healthcare_preset_is_per_record_with_limits() -> None:
    section = parse_plan('[privacy]\npreset = "healthcare"\n').privacy
    assert section.hides == "record" and section.target == (0.5, False)
    assert section.limits == Limits(1e-5, 3.5, 15.0, None)
    own = parse_plan('[privacy]\npreset = "healthcare"\nweekly = 2.0\nlevel = "very strong"\n')
    assert own.privacy.limits.weekly == 2.0 and own.privacy.target == (0.1, False)


@pytest.mark.parametrize(
    ("level", "epsilon"), [("very strong", 0.1), ("strong", 0.5), ("moderate", 1.0), ("weak", 5.0)]
)
def test_levels_are_those_of_the_first_design(level: str, epsilon: float) -> None:
    section = parse_plan(f'[privacy]\nunit = "record"\nlevel = "{level}"\n').privacy
    assert section.target == (epsilon, False)


def test_a_total_is_the_lifetime_limit_unless_one_is_set() -> None:
    assert parse_plan(RECORD).privacy.limits.lifetime == 4.0
    assert parse_plan(f"{RECORD}lifetime = 9.0\n").privacy.limits.lifetime == 9.0
    each = parse_plan('[privacy]\nunit = "record"\nepsilon_per_round = 0.5\n')
    assert each.privacy.limits.lifetime is None


def test_the_account_is_that_of_the_data_set_and_the_unit() -> None:
    named = resolved(parse_plan(f'{SITE}dataset = "heart"\n')).budget
    assert named is not None and (named.account, named.unit) == ("heart-site", "site")
    assert not named.is_spent_at_sites
    plain = resolved(parse_plan(f'{LOCAL}[federation]\nname = "a.b"\n')).budget
    assert plain is not None and plain.account == "a-b-local" and plain.is_spent_at_sites


# ---- noise --------------------------------------------------------------------------


def test_the_noise_is_that_of_the_reference() -> None:
    one = resolved(parse_plan(f'{TARGET}[privacy]\nunit = "site"\nepsilon_per_round = 0.5\n'))
    assert one.privacy.noise_multiplier == 7.03183
    seven = resolved(
        parse_plan(f'{TARGET}[federation]\nrounds = 7\n[privacy]\nunit = "site"\nepsilon = 3.5\n')
    )
    assert seven.privacy.noise_multiplier == 3.21349
    assert epsilon_of_rounds(seven, 7) <= 3.5


def test_the_healthcare_preset_keeps_its_epsilon_with_counts_beside() -> None:
    """500 steps alone would take 1.7906; the noised count takes a little of the budget."""
    plan = resolved(parse_plan('[privacy]\npreset = "healthcare"\n[training]\nepochs = 5\n'))
    sigma = plan.privacy.noise_multiplier
    assert sigma is not None and 1.7906 < sigma < 1.81
    assert 0.499 < epsilon_of_rounds(plan, 1) <= 0.5
    model, side = total_costs(plan, 1)
    assert (model.releases, model.rate, side.releases, side.rate) == (500, 0.01, 1, 1.0)
    assert total_costs(plan, 3)[0] == Cost(sigma, 1500, 0.01)


def test_scores_and_counts_cost_what_leaves() -> None:
    text = f'{RECORD}noise_multiplier = 2.0\n[evaluation]\nmetric = "accuracy"\n'
    plan = parse_plan(text.replace("epsilon = 4.0\n", ""))
    made = resolved(plan)
    assert made.privacy.side_noise == 40.0  # twenty times the model's, where no epsilon is asked
    assert [one.releases for one in total_costs(made, 1)] == [500, 3]  # a count, two scores
    public = plan.privacy.model_copy(update={"records": 100, "side_noise": 40.0})
    assert len(public.costs(5, has_scores=False)) == 1


def test_noise_that_is_there_stays_and_is_checked() -> None:
    plan = resolved(parse_plan(SITE))
    assert resolved(plan) is plan
    assert resolved(Plan()) == Plan()
    less = plan.privacy.model_copy(update={"noise_multiplier": 1.0})
    with pytest.raises(ImpossiblePlanError, match="the plan promises 4") as caught:
        resolved(plan.model_copy(update={"privacy": less}))
    assert "noise_multiplier out" in caught.value.hint


def test_terms_need_the_noise() -> None:
    with pytest.raises(ImpossiblePlanError, match="was not computed") as caught:
        parse_plan(SITE).terms(())
    assert "consortium lock" in caught.value.hint
    terms = resolved(parse_plan(SITE)).terms(())
    assert terms.budget is not None and terms.budget.costs[0].rate == 1.0


# ---- what is promised ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "unit", "accountant"),
    [(RECORD, "record", "PLD"), (SITE, "site", "closed form"), (LOCAL, "local", "closed form")],
)
def test_no_epsilon_stands_alone(text: str, unit: str, accountant: str) -> None:
    told = resolved(parse_plan(text)).guarantees()
    (promise,) = [one for one in told if one.startswith("PROTECTED: ")]
    for words in (HIDDEN[unit], AGAINST[unit], "epsilon 4 at delta 1e-05", "all 100 rounds"):
        assert words in promise
    assert f"accountant: {accountant}" in promise
    assert "no differential privacy" not in " ".join(told)
    assert unit in ADJACENCY


def test_promises_say_what_each_unit_leaves_open() -> None:
    record = " ".join(parse_plan(RECORD).guarantees())
    assert "whether a site takes part" in record and "several records" in record
    assert "noised before it leaves" in record and "as much noise as that takes" in record
    site = " ".join(parse_plan(SITE).guarantees())
    assert "a site from the coordinator" in site and "in the clear" in site
    assert "without noise it is not privacy" not in site
    local = " ".join(resolved(parse_plan(LOCAL)).guarantees())
    assert "times twice that is added at the site" in local


def test_promises_say_what_becomes_of_scores() -> None:
    noised = resolved(parse_plan(f'{RECORD}[evaluation]\nmetric = "accuracy"\n'))
    assert "two counts, of test records and of right answers" in " ".join(noised.guarantees())
    public = " ".join(parse_plan(f'{SITE}test_records = "public"\n').guarantees())
    assert "NOT PROTECTED: test records" in public
    assert "judged by its form alone" in " ".join(parse_plan(SITE).guarantees())


def test_promises_tell_the_limits_and_that_they_are_no_guarantees() -> None:
    told = " ".join(parse_plan('[privacy]\npreset = "healthcare"\n').guarantees())
    assert "3.5 in any 7 days, 15 in any 30 days" in told and "learnt for ever" in told
    each = parse_plan('[privacy]\nunit = "record"\nepsilon_per_round = 0.5\n').guarantees()
    assert "nothing limits" in " ".join(each)
    bare = parse_plan('[privacy]\nunit = "record"\nnoise_multiplier = 2.0\n').guarantees()
    assert "noise multiplier 2" in " ".join(bare)


def test_a_simulation_says_that_its_noise_protects_nobody() -> None:
    assert SIMULATED in simulated_promises(parse_plan(SITE))[0]
    assert simulated_promises(Plan()) == []


# ---- the lock -----------------------------------------------------------------------


@pytest.fixture
def study(tmp_path: Path) -> Study:
    from tests.test_cli_operator import new_study

    more = f"{SITE.removeprefix(TARGET)}[evaluation]\nenabled = false #"
    changes = {"fraction = 1.0": "target = 4 #", "[evaluation]\nmetric": more}
    return load_study(new_study(tmp_path / "study", changes) / "consortium.toml")


def test_a_lock_holds_the_noise_and_gives_it_back(study: Study, tmp_path: Path) -> None:
    lock, model = make_lock(study, 1)
    plan = resolved(study.plan)
    assert lock.noise == Noise(plan.privacy.noise_multiplier or 0.0, None)
    assert lock.plan == plan.digest != study.plan.digest
    write_lock(tmp_path, lock, model)
    held, _ = read_lock(tmp_path)
    assert held == lock and held.applied(study.plan) == plan
    check_lock(tmp_path, study)


def test_a_lock_with_other_noise_is_not_the_plans(study: Study, tmp_path: Path) -> None:
    lock, model = make_lock(study, 1)
    write_lock(tmp_path, replace(lock, noise=Noise(0.1, None)), model)
    with pytest.raises(VerificationError, match="has changed"):
        check_lock(tmp_path, study)


@pytest.mark.parametrize("noise", ["noise_multiplier = -1.0", "noise_multiplier = 1", "more = 2.0"])
def test_a_lock_with_impossible_noise_is_none(study: Study, tmp_path: Path, noise: str) -> None:
    lock, model = make_lock(study, 1)
    write_lock(tmp_path, lock, model)
    text = (tmp_path / "plan.lock").read_text()
    head = text[: text.index("[noise]")]
    (tmp_path / "plan.lock").write_text(f"{head}[noise]\n{noise}\n")
    with pytest.raises(VerificationError, match="is not a lock"):
        read_lock(tmp_path)


def test_a_plan_without_privacy_has_no_noise_in_its_lock() -> None:
    assert Noise.of(Plan()) is None


# ---- it runs ------------------------------------------------------------------------


@co.numpy_task(start=lambda _: {"w": np.zeros(50, np.float32)}, evaluate=lambda *_: ({}, 1))
def _still(site: co.Site, shared: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
    return shared, 1


@pytest.mark.parametrize("record", [False, True])
def test_updates_with_local_noise_are_not_refused_for_their_length(record: bool) -> None:
    """They are many times longer than the clip, wherever they are checked one by one."""
    plan = parse_plan(f"{LOCAL}[federation]\nrounds = 1\n")
    sites = [co.SimulatedSite(f"site-{number}", None) for number in range(6)]
    run = co.simulate(_still, plan, sites, seed=1, options=co.Options(record=record))
    (told,) = run.history.rounds
    assert told.outcome == "accepted" and told.lost == []
