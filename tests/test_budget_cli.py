"""`consortium budget`, and what other commands say of a private plan: as a lead, and as a site's
people, meet it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from consortium.cli import noise_told
from consortium.cli.gauges import WINDOWS, bar, budget_sheet, epsilon, frees, in_one_line
from consortium.cli.noise_told import with_noise
from consortium.cli.spending import Spendings, draw_spending, epsilon_by_time, spendings_of
from consortium.cli.told import Budget, WindowTold
from consortium.core.account_facts import Cost
from consortium.core.terms import DAY_MS
from consortium.drive.study import load_study
from consortium.errors import UsageError
from consortium.plan import parse_plan
from consortium.plan.forecast import Allowance, allowances, pace, prices, with_target
from consortium.plan.noise import resolved
from consortium.privacy.gaussian import epsilon_of, mu_of
from tests.test_cli_operator import SITES, Process, call, new_study, serve

DELTA = 1e-5
NOW_MS = 1_795_000_000_000
SITE_LEVEL = """
[privacy]
unit = "site"
epsilon_per_round = 0.5
weekly = 0.75
lifetime = 4.0
test_records = "public"
"""
PRIVATE = {  # of the study that `init` writes: two rounds a week, opened on demand
    "rounds = 10": 'rounds = 9\nevery = "30d"',
    "fraction = 1.0": "target = 3 #",
    "[evaluation]": f"{SITE_LEVEL}\n[evaluation]",
}


def window(spent: float, limit: float | None, after: float, name: str = "weekly") -> WindowTold:
    return WindowTold(window=name, limit=limit, spent=spent, after_next=after)


def budget(**changes: Any) -> Budget:
    windows = [window(1.4, 3.5, 1.6), window(1.4, None, 1.6, "lifetime")]
    told = {"federation": "heart", "account": "heart-record", "unit": "record", "delta": DELTA}
    return Budget.model_validate(told | {"accountant": "PLD", "windows": windows} | changes)


# ---- bars and words -----------------------------------------------------------------


def test_a_bar_tells_what_is_spent_and_what_a_round_adds() -> None:
    assert bar(window(0, 3.5, 0)) == "·" * 24
    assert bar(window(1.75, 3.5, 3.5)) == "█" * 12 + "░" * 12
    assert bar(window(0.001, 3.5, 0.002)) == "█" + "·" * 23
    assert bar(window(3.49, 3.5, 4)) == "█" * 23 + "░"  # not full, so it does not look full
    assert bar(window(float("inf"), 3.5, float("inf"))) == "█" * 24
    assert bar(window(1.0, None, 2.0)) == ""


def test_epsilon_is_rounded_upwards() -> None:
    shown = [epsilon(value) for value in (0.0, 0.49999984, 1.45308, 12.3401, float("inf"))]
    assert shown == ["0", "0.5000", "1.454", "12.35", "∞"]
    assert [epsilon(value) for value in (0.5, 3.5, 10.0, 0.000123)] == [
        "0.5000",
        "3.500",
        "10.00",
        "0.000123",
    ]


def test_a_screen_has_no_epsilon_without_what_it_means() -> None:
    text = "\n".join(budget_sheet(budget(), NOW_MS).plain())
    for words in ("one record of a site", "add or remove one record", "the coordinator included"):
        assert words in text
    assert "at delta 1e-05; accountant: PLD" in text
    assert "7 days" in text and "ever" in text and "can be paid now" in text


def test_a_line_says_the_lifetime_total_though_it_has_no_limit() -> None:
    line = in_one_line(budget(), NOW_MS)
    assert line == "epsilon 1.400 of 3.5 in 7 days, 1.400 ever; per record at delta 1e-05, PLD"
    late = in_one_line(budget(is_affordable=False, frees_ms=NOW_MS + DAY_MS), NOW_MS)
    assert late.endswith("(in 24 h) at the earliest")


def test_when_a_budget_frees_is_told_in_words() -> None:
    assert frees(True, None, NOW_MS) == "can be paid now"
    assert "(in 3 d)" in frees(False, NOW_MS + 3 * DAY_MS, NOW_MS)
    assert "cannot be paid any more" in frees(False, None, NOW_MS)
    assert "when somebody returns" in frees(False, NOW_MS, NOW_MS)


def test_without_an_account_there_is_nothing_to_show() -> None:
    told = Budget(federation="heart", account=None)
    assert "nothing to spend" in budget_sheet(told, NOW_MS).plain()[0]


# ---- epsilon over time --------------------------------------------------------------


def _spent(days: list[int]) -> Spendings:
    paid = tuple((day * DAY_MS, (Cost(5.0, 1, 1.0),)) for day in days)
    return Spendings("heart-site", "site", DELTA, {"weekly": 1.0}, paid)


def test_a_window_forgets_and_the_lifetime_does_not() -> None:
    spent = _spent([1, 2, 9, 20])
    one, two, four = (epsilon_of(mu_of([5.0] * count), DELTA) for count in (1, 2, 4))
    weekly = dict(epsilon_by_time(spent, 7 * DAY_MS))
    assert [weekly[day * DAY_MS] for day in (1, 2, 8, 9, 20)] == pytest.approx(
        [one, two, one, one, one]
    )
    assert dict(epsilon_by_time(spent, None))[20 * DAY_MS] == pytest.approx(four)
    assert len(epsilon_by_time(_spent(list(range(1, 1000))), None)) <= 64


def test_a_plot_is_drawn_and_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_spending(_spent([1, 2, 9]), tmp_path / "budget.svg")
    text = (tmp_path / "budget.svg").read_text()
    assert text.count("<path") > 10
    with pytest.raises(UsageError, match="nothing was spent"):
        draw_spending(_spent([]), tmp_path / "none.svg")
    with pytest.raises(UsageError, match="does not tell what was spent when"):
        spendings_of(budget())


# ---- budget plan --------------------------------------------------------------------

CENTRAL = '[privacy]\nunit = "site"\nepsilon_per_round = 0.5\n[selection]\ntarget = 10\n'


def test_prices_are_those_of_the_reference() -> None:
    found = {one.rounds: one for one in prices(resolved(parse_plan(CENTRAL)), [30, 1, 7, 7])}
    assert list(found) == [1, 7, 30]
    for rounds, exact, rdp in ((1, 0.5, 0.54907), (7, 1.45308, 1.583119), (30, 3.28532, 3.55676)):
        assert found[rounds].epsilon == pytest.approx(exact, rel=1e-4)
        assert found[rounds].rdp == pytest.approx(rdp, rel=1e-3)


def test_a_week_of_3_5_pays_for_33_rounds() -> None:
    plan = resolved(parse_plan(CENTRAL.replace("[sel", "weekly = 3.5\n[sel")))
    (given,) = allowances(plan)
    assert (given.window, given.rounds, given.length_ms) == ("weekly", 33, 7 * DAY_MS)
    assert pace(plan, [given]).lasts_ms == 21 * DAY_MS  # 100 rounds: the 100th is in week four


@pytest.mark.parametrize(
    ("more", "given", "rounds", "days"),
    [
        ("", [], 10, 0),
        ('every = "2d"\n', [], 10, 18),
        ("", [Allowance("weekly", 1.0, 7 * DAY_MS, 4)], 10, 14),
        ('every = "3d"\n', [Allowance("weekly", 1.0, 7 * DAY_MS, 2)], 10, 4 * 7 + 3),
        (
            "",
            [
                Allowance("weekly", 1.0, 7 * DAY_MS, 4),
                Allowance("monthly", 1.0, 30 * DAY_MS, 5),
            ],
            10,
            30 + 7,
        ),
        ("", [Allowance("lifetime", 1.0, None, 6)], 6, 0),
        ("", [Allowance("weekly", 1.0, 7 * DAY_MS, 0)], 0, 0),
    ],
)
def test_rounds_wait_for_their_windows(
    more: str, given: list[Allowance], rounds: int, days: int
) -> None:
    plan = parse_plan(f"[federation]\nrounds = 10\n{more}")
    found = pace(plan, given)
    assert (found.rounds, found.lasts_ms) == (rounds, days * DAY_MS)


def test_another_epsilon_counts_as_the_plan_counts() -> None:
    each = with_target(resolved(parse_plan(CENTRAL)), 1.0)
    assert each.privacy.noise_multiplier == 3.73064
    text = CENTRAL.replace("epsilon_per_round = 0.5", "epsilon = 3.0") + "[federation]\nrounds = 7"
    total = with_target(resolved(parse_plan(text)), 3.5)
    assert total.privacy.noise_multiplier == 3.21349


def _plan_file(folder: Path, text: str) -> Path:
    (folder / "consortium.toml").write_text(text)
    return folder / "consortium.toml"


def test_a_plan_is_priced_on_one_screen(tmp_path: Path) -> None:
    text = CENTRAL.replace("[sel", "weekly = 3.5\nmonthly = 15.0\n[sel")
    file = _plan_file(tmp_path, text)
    found = call("budget", "plan", str(file), "--size", "75074", "--epsilon", "1")
    assert found.exit_code == 0, found.output
    for words in (
        "one site (taking part or not): add or remove one site",
        "not against the coordinator",
        "7.03183 times the clip of 1",
        "epsilon 1 for one round needs noise of 3.73064",
        "0.00519 times the noise, for 75,074 numbers of 10 sites",
        "the last opens 21 d after the first",
    ):
        assert words in found.stdout
    assert "WARNING: in every round the noise is 193 times" in found.stderr
    assert "1,927 sites a round" in found.stderr


def test_the_json_of_a_plan_says_what_its_epsilon_means(tmp_path: Path) -> None:
    file = _plan_file(tmp_path, CENTRAL.replace("[sel", "weekly = 3.5\n[sel"))
    found = call("--json", "budget", "plan", str(file), "--rounds", "12")
    assert found.exit_code == 0 and not found.stderr
    told = json.loads(found.stdout)["data"]
    assert told["unit"] == "site" and told["delta"] == DELTA
    assert told["accountant"] == "closed form" and "coordinator" in told["against"]
    assert told["adjacency"] == "add or remove one site"
    assert [one["rounds"] for one in told["prices"]] == [1, 7, 12, 30]
    assert told["limits"][0]["rounds"] == 33 and told["signal"] is None


def test_records_that_are_told_show_the_batch_and_the_signal(tmp_path: Path) -> None:
    file = _plan_file(tmp_path, '[privacy]\nunit = "record"\nnoise_multiplier = 2.0\n')
    options = ("--size", "1000", "--records", "300", "--sites", "20")
    found = call("budget", "plan", str(file), "--set", "selection.fraction=1.0", *options)
    assert found.exit_code == 0, found.output
    assert "3 records expected in a step (0.01 of 300)" in found.stdout
    assert "1,000 numbers of 20 sites a round" in found.stdout
    assert "sampling_rate = 0.054" in found.stderr
    unknown = call("budget", "plan", str(file), "--size", "1000")
    assert "as strong as the noise with" in unknown.stdout and not unknown.stderr


def test_the_lock_says_how_large_the_model_is(tmp_path: Path) -> None:
    folder = new_study(tmp_path / "study", PRIVATE)
    locked = call("lock", str(folder / "consortium.toml"), "--seed", "1")
    assert locked.exit_code == 0, locked.output
    assert "WARNING: in every round the noise is" in locked.stderr
    found = call("budget", "plan", str(folder / "consortium.toml"))
    assert "numbers of 3 sites a round" in found.stdout
    told = json.loads(call("--json", "lock", str(folder / "consortium.toml")).stdout)["data"]
    assert "What would help" in told["warnings"][0]


def test_what_cannot_be_priced_is_refused_with_something_to_paste(tmp_path: Path) -> None:
    file = str(_plan_file(tmp_path, "[federation]\nrounds = 5\n"))
    found = call("budget", "plan", file)
    assert found.exit_code == 2 and "privacy.preset=healthcare" in found.stderr
    found = call("budget", "plan", file, "--set", "federation.rounds=1,2")
    assert found.exit_code == 2 and "one value for each key" in found.stderr
    assert call("budget", "plan", str(tmp_path / "none.toml")).exit_code == 3


def test_a_plan_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = _plan_file(tmp_path, CENTRAL.replace("[sel", "weekly = 3.5\n[sel"))
    found = call("budget", "plan", str(file), "--plot", str(tmp_path / "plan.png"))
    assert found.exit_code == 0, found.output
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    wrong = call("budget", "plan", str(file), "--plot", str(tmp_path / "plan.txt"))
    assert wrong.exit_code == 2


# ---- simulations --------------------------------------------------------------------


def test_a_simulation_says_that_its_noise_protects_nobody(tmp_path: Path) -> None:
    folder = new_study(tmp_path / "study", PRIVATE)
    runs = ("--runs", str(tmp_path / "runs"), "--seed", "1", "--rounds", "2")
    found = call("simulate", str(folder / "consortium.toml"), *runs)
    assert found.exit_code == 0, found.output
    assert "simulated noise: protects nobody" in found.stderr
    assert "WARNING: in every round the noise is" in found.stderr
    assert "noise of 7.03183 times that is added to the sum" in found.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert "noise_multiplier = 7.03183" in (run / "plan.toml").read_text()


def test_noised_scores_are_not_taken_for_a_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = load_study(new_study(tmp_path / "study") / "consortium.toml")
    text = '[privacy]\nunit = "record"\nnoise_multiplier = 2.0\n[evaluation]\nmetric = "accuracy"\n'
    monkeypatch.setattr(noise_told, "_size", lambda _: 7)
    capsys.readouterr()
    noise_told.warn_of_studies([with_noise(replace(study, plan=parse_plan(text))), study])
    told = capsys.readouterr().err
    assert "no measure of a model" in told and "test_records=public" in told
    assert told.count("protects nobody") == 1


# ---- between hosts ------------------------------------------------------------------


@dataclass
class Spent:
    """A federation whose week is spent, and its coordinator and sites while they run."""

    folder: Path
    opened: Any

    @property
    def where(self) -> tuple[str, str]:
        return ("--coordinator", str(self.folder / "coordinator"))

    @property
    def home(self) -> Path:
        return self.folder / SITES[0]


def _done(where: tuple[str, str]) -> int:
    told = json.loads(call("--json", "status", *where).stdout)["data"]["federations"][0]
    return 0 if told["round"] else int(told["rounds"]["done"])


def _wait_for(rounds: int, where: tuple[str, str]) -> None:
    ends = time.monotonic() + 90
    while _done(where) < rounds:
        assert time.monotonic() < ends
        time.sleep(0.2)


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spent]:
    """Two rounds: the first when the sites are there, the second because it was asked for."""
    folder = new_study(tmp_path_factory.mktemp("spent") / "study", PRIVATE)
    coordinator = serve(folder, "--seed", "1")
    where = ("--coordinator", str(folder / "coordinator"))
    task = json.loads(call("--json", "status", *where).stdout)["data"]["federations"][0]["task"]
    agents = []
    for name in SITES:
        token = call("invite", name, *where).stdout.split()[2]
        options = ["--data", f"data/{name}.csv", "--home", name, "--approve", task]
        agents.append(Process(["join", token, *options], folder, name))
    try:
        _wait_for(1, where)
        opened = call("round", "open", *where)
        _wait_for(2, where)
        yield Spent(folder, opened)
    finally:
        for process in (*agents, coordinator):
            process.end()


def test_a_private_round_opens_on_demand(spent: Spent) -> None:
    assert spent.opened.exit_code == 0, spent.opened.output
    assert spent.opened.stdout == "round 2 is open\n"


def test_a_round_that_cannot_be_paid_is_refused_with_the_time(spent: Spent) -> None:
    found = call("round", "open", *spent.where)
    assert found.exit_code == 5
    assert "error[E0501]: the privacy budget does not pay for this round" in found.stderr
    assert "can be paid from 20" in found.stderr and "(in 6 d 23 h)" in found.stderr
    assert "hint: consortium budget show" in found.stderr
    told = json.loads(call("--json", "round", "open", *spent.where).stdout)
    assert told["error"]["code"] == "E0501" and told["error"]["details"]["frees_ms"] > 0


def test_budget_show_has_gauges_and_what_they_mean(spent: Spent) -> None:
    found = call("budget", "show", *spent.where)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0] == "first-study: privacy account first-study-site"
    assert any(line.startswith("7 days    0.7300") and "0.75" in line for line in lines)
    assert any(line.startswith("ever") and "0.9" in line for line in lines)
    assert "one site (taking part or not)" in found.stdout
    assert "closed form" in found.stdout and "delta 1e-05" in found.stdout
    assert "2 of this federation paid from it" in found.stdout
    assert "can be paid from 20" in found.stdout
    assert call("budget", "show", "first-study", *spent.where).stdout == found.stdout


def test_budget_show_as_json_is_one_envelope(spent: Spent) -> None:
    found = call("--json", "budget", "show", *spent.where)
    told = json.loads(found.stdout)
    assert told["ok"] and told["command"] == "budget show"
    (one,) = told["data"]["budgets"]
    assert one["adjacency"] == "add or remove one site" and one["unit"] == "site"
    assert [w["window"] for w in one["windows"]] == list(WINDOWS)
    assert not one["is_affordable"] and one["frees_ms"] > 0


def test_budget_show_of_an_unknown_federation_is_refused(spent: Spent) -> None:
    assert call("budget", "show", "nobody", *spent.where).exit_code != 0


def test_status_has_a_line_for_the_budget(spent: Spent) -> None:
    found = call("status", *spent.where)
    (line,) = [one for one in found.stdout.splitlines() if one.startswith("budget")]
    assert "of 0.75 in 7 days" in line and "of 4 ever" in line and "per site" in line
    assert "the next round can be paid from" in line
    raw = json.loads(call("--json", "status", *spent.where).stdout)["data"]["federations"][0]
    assert raw["budget"]["account"] == "first-study-site"


def test_a_site_sees_its_own_ledger(spent: Spent) -> None:
    found = call("budget", "show", "--home", str(spent.home))
    assert found.exit_code == 0, found.output
    assert "this site's own account records-site" in found.stdout
    told = json.loads(call("--json", "budget", "show", "--home", str(spent.home)).stdout)
    assert told["data"]["budgets"][0]["account"] == "records-site"
    wrong = call("budget", "show", "first-study", "--home", str(spent.home))
    assert wrong.exit_code == 2
