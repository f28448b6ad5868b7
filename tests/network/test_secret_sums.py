"""Secret sums between real processes: sites are lost in every phase, come back after a crash, and
lie; the coordinator asks for too much. The sum is right, or there is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortium.coordinator.evidence import Evidence, Tally
from consortium.core import facts as f
from consortium.core import secagg_facts as m
from consortium.core import site_facts as s
from consortium.core.budget_facts import BudgetCharged
from consortium.core.codec import decode
from consortium.core.federation import evolve
from consortium.core.ids import Seat
from consortium.core.secagg import two_thirds
from consortium.core.state import Federation
from consortium.drive.directory import DataDirectory
from consortium.drive.engine import SimulatedSite
from consortium.drive.lock import make_lock, write_lock
from consortium.drive.simulate import simulate
from consortium.drive.study import load_study
from consortium.drive.verify import verify_directory
from consortium.model import Layout
from consortium.plan.toml import parse_plan
from consortium.plan.values import Plan
from consortium.stored import open_model
from tests.site.federation import PLAN, Process, Site, Small, found, wait_for

NAMES = ("one", "two", "three", "four", "five", "six")
FOUR = NAMES[:4]  # of whom three are enough
MASKED = """
[security]
secure_aggregation = true
phase = "{phase}"
[strategy]
clip = 10.0
weight = "uniform"
[evaluation]
enabled = false
gate = false
"""
SCORED = MASKED.replace("enabled = false\ngate = false", "gate = false\nbound = 10.0")
# An agent that is killed, as by a power cut, the moment before it gives what a phase asks for.
_DOOMED = """
import json, os, signal, sys
from pathlib import Path
from consortium.site.agent import Agent
from consortium.site.home import SiteHome
from consortium.site.secret_sums import SecretSums
home, phase, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
make = getattr(SecretSums, phase)
def doomed(self, asked, *rest):
    if asked == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return make(self, asked, *rest)
setattr(SecretSums, phase, doomed)
def tell(event):
    print(json.dumps(event.told()), flush=True)
Agent(SiteHome.open(home), on_event=tell, until_finished=True).run()
"""
PHASES = ("keys", "shares", "masked", "consent", "answer")


def doomed(site: Site, phase: str, number: int) -> Process:
    arguments = [sys.executable, "-c", _DOOMED, str(site.home), phase, str(number)]
    return Process(arguments, site.agent.log)


@pytest.fixture
def made() -> Iterator[list[Small]]:
    listed: list[Small] = []
    yield listed
    for small in listed:
        small.end()


def secret(
    folder: Path,
    made: list[Small],
    *,
    rounds: int,
    phase: str = "20s",
    duration: str = "60s",
    more: str = MASKED,
    names: tuple[str, ...] = NAMES,
    **how: str,
) -> tuple[Small, list[Site]]:
    small = found(
        folder,
        rounds=rounds,
        quorum=two_thirds(len(names)),
        sites=len(names),
        duration=duration,
        selection=f"target = {len(names)}",
        more=more.format(phase=phase),
        **how,
    )
    made.append(small)
    small.order("hold")
    return small, [small.add(name, options=("--until-finished",)) for name in names]


def begin(small: Small, processes: list[Process]) -> None:
    """No round opens before all of them are there: phases are short."""
    small.others += processes
    for process in processes:
        process.start()
    wait_for(lambda: all(process.told("connected") for process in processes), 60.0)
    small.order("resume")


def facts_of(small: Small) -> list[Any]:
    directory = DataDirectory(small.data)
    try:
        (stream,) = (name for name in directory.log.streams() if "/" not in name)
        return [decode(record) for record in directory.log.read(stream)]
    finally:
        directory.close()


def closed_in(facts: list[Any], kind: type[Any]) -> dict[int, tuple[int, ...]]:
    listed = [fact for fact in facts if isinstance(fact, kind)]
    return {fact.round: getattr(fact, "seats", None) or fact.members for fact in listed}


def models(small: Small, facts: list[Any]) -> list[list[float]]:
    """Of the versions from the first one on."""
    directory = DataDirectory(small.data)
    try:
        plan = next(fact for fact in facts if isinstance(fact, f.PlanAdopted))
        layout = Layout.from_canonical(directory.blobs.get(plan.layout))
        digests = [
            fact.model for fact in facts if isinstance(fact, f.ModelInstalled | f.ModelPublished)
        ]
        return [open_model(directory.blobs, layout, one)[0:3].tolist() for one in digests]
    finally:
        directory.close()


def check_all(small: Small, sites: list[Site], facts: list[Any]) -> None:
    """Every step goes half of the way, whoever is in the sum; the audit redoes every sum."""
    steps = models(small, facts)
    for before, after in pairwise(steps):
        expected = np.array(before) + 0.5 * (1 - np.array(before))
        assert np.allclose(after, expected, atol=1e-4)
    tally = Tally()
    audit = verify_directory(small.data, checks=[lambda blobs: Evidence(blobs, tally)])
    assert audit.findings == []
    assert tally.count == sum(isinstance(fact, _SIGNED) for fact in facts)
    assert [path for site in sites for path in (site.home / "secrets").glob("*")] == []


_SIGNED = (
    *(m.KeysReceived, m.SharesReceived, m.ConsentReceived, m.AnswerReceived),
    *(f.UpdateReceived, f.SiteDropped),
)


def test_site_lost_in_each_phase_is_not_missed_and_its_receipts_hold(
    tmp_path: Path, made: list[Small]
) -> None:
    small, sites = secret(tmp_path, made, rounds=5, phase="5s", duration="7s", more=SCORED)
    fates = list(zip(sites[:5], PHASES, strict=True))
    lost = [doomed(site, phase, at) for at, (site, phase) in enumerate(fates, 1)]
    begin(small, [*lost, sites[5].agent])
    for at, (process, site) in enumerate(zip(lost, sites[:5], strict=True), 1):
        wait_for(lambda gone=process: _is_killed(gone), 60.0)
        small.order("hold")  # the next round waits until the site is back
        wait_for(lambda number=at: small.status()["version"] >= number, 60.0)
        site.agent.start()
        wait_for(lambda back=site.agent: _connections(back) == 2, 60.0)
        if at < len(lost):
            small.order("resume")
    assert [site.agent.wait() for site in sites] == [0] * 6
    facts = facts_of(small)
    keyed, shared = closed_in(facts, m.KeysClosed), closed_in(facts, m.SharesClosed)
    members, signed = closed_in(facts, f.RoundClosed), closed_in(facts, m.ConsentsClosed)
    answered = closed_in(facts, m.AnswersClosed)
    assert [len(keyed[at]) for at in range(1, 6)] == [5, 6, 6, 6, 6]
    assert [len(shared[at]) for at in range(1, 6)] == [5, 5, 6, 6, 6]
    assert [len(members[at]) for at in range(1, 6)] == [5, 5, 5, 6, 6]
    assert 4 not in signed[4] and 5 not in answered[5]
    assert all(4 <= len(seats) <= 5 for seats in (*signed.values(), *answered.values()))
    assert small.status()["version"] == 5
    check_all(small, sites, facts)
    check_scores(small, facts, [len(members[at]) for at in range(1, 6)])
    for at, site in enumerate(sites):
        for number in range(1, 6):
            has_receipt = (site.home / "receipts" / f"round-{number}.proof").exists()
            assert has_receipt is (number != at + 1 or at >= 3)


def check_scores(small: Small, facts: list[Any], members: list[int]) -> None:
    """Each member has four test records, and the loss of version k is 3 · 4^-k. The same plan gives
    the same scores in a simulation. Nobody has told any of its own."""
    scored = [fact for fact in facts if isinstance(fact, f.BaseScored)]
    assert [(one.round, one.version) for one in scored] == [(at + 1, at) for at in range(5)]
    assert [one.samples for one in scored] == [4 * count for count in members]
    assert [one.means for one in scored] == [(3 * 0.25**at,) for at in range(5)]
    assert not any(isinstance(fact, f.Evaluated) for fact in facts)
    study = load_study(small.folder / "study" / "consortium.toml", small.folder / "sample.csv")
    alike = [SimulatedSite(name, small.folder / "sample.csv") for name in NAMES]
    simulated = simulate(study.task, study.plan, alike, seed=1).history.rounds
    assert [record.base_metrics["loss"] for record in simulated] == [one.means[0] for one in scored]
    told = {one["version"]: one["metrics"] for one in small.ask("models")}
    assert told == {at: {"loss": 3 * 0.25**at} for at in range(5)} | {5: {}}


def _is_killed(process: Process) -> bool:
    return process.running is not None and process.running.poll() == -9


def _connections(process: Process) -> int:
    return sum(event["kind"] == "connected" for event in process.events())


def test_site_killed_in_each_phase_comes_back_and_counts(tmp_path: Path, made: list[Small]) -> None:
    """A round waits for keys, shares and updates of all. Four signatures and four answers are
    enough, so three must be killed for one of them to be waited for."""
    small, sites = secret(tmp_path, made, rounds=5)
    first = [doomed(site, phase, at) for at, (site, phase) in enumerate(_alone(sites), 1)]
    last = [doomed(site, "answer", 5) for site in sites[3:]]
    begin(small, [*first, *last])
    again = [doomed(site, "consent", 4) for site in sites[:3]]
    for process, after in zip(first, again, strict=True):
        wait_for(lambda gone=process: _is_killed(gone), 40.0)
        after.start()
        small.others.append(after)
    for killed, back in ((again, sites[:3]), (last, sites[3:])):
        wait_for(lambda three=killed: all(map(_is_killed, three)), 40.0)
        for site in back:
            site.agent.start()
    assert [site.agent.wait() for site in sites] == [0] * 6
    facts = facts_of(small)
    members = closed_in(facts, f.RoundClosed)
    assert members == dict.fromkeys(range(1, 6), (1, 2, 3, 4, 5, 6))
    assert {1, 2, 3} & set(closed_in(facts, m.ConsentsClosed)[4])
    assert {4, 5, 6} & set(closed_in(facts, m.AnswersClosed)[5])
    check_all(small, sites, facts)
    twice = [1, 2, 3, 3, 4, 5]  # killed between training and masking
    assert [site.trained() for site in sites] == [[1, 2, 3, 4, 5]] * 2 + [twice] + [
        [1, 2, 3, 4, 5]
    ] * 3


def _alone(sites: list[Site]) -> list[tuple[Site, str]]:
    return list(zip(sites[:3], PHASES[:3], strict=True))


# ---- nothing but sums ---------------------------------------------------------------


_NUMBERS = """
import numpy as np
import consortium as co

def start(rng):
    return {"w": np.zeros(400, np.float32)}

def evaluate(site, shared):
    return {"loss": 0.0}, 1

@co.numpy_task(start=start, evaluate=evaluate)
def study(site, shared):
    rng = np.random.default_rng(int(open(site.data).read()))
    return {"w": shared["w"] + rng.normal(size=400).astype(np.float32) / 100}, 10
"""
_OPEN = """
[strategy]
clip = 10.0
weight = "uniform"
[evaluation]
enabled = false
gate = false
"""


def _traces(folder: Path, seed: int) -> list[str]:
    """The files in which a part of this site's step stands, as numbers or as levels."""
    step = np.random.default_rng(seed).normal(size=400).astype(np.float32) / 100
    sent = np.zeros(400, np.float32) + step  # as training adds it, and takes it away again
    forms = [sent, sent.astype(np.float64), *_levels(sent)]
    parts = [form[at : at + 3].tobytes() for form in forms for at in (5, 100, 390)]
    found = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        data = path.read_bytes()
        if any(part in data for part in parts):
            found.append(path.name)
    return found


def _levels(step: Any) -> list[Any]:
    """A level is the number in steps of the ring, rounded up or down: both are looked for."""
    ring = _plan_of(MASKED.format(phase="20s")).ring(_LAYOUT)
    exact = step.astype(np.float64) / ring.step
    return [np.floor(exact).astype(np.int32), np.ceil(exact).astype(np.int32)]


_LAYOUT = Layout.of({"w": np.zeros(400, np.float32)})


def _plan_of(more: str) -> Plan:
    text = PLAN.format(rounds=1, quorum=3, selection="target = 4", wait_for=4, duration="60s")
    return parse_plan(text + more)


@pytest.mark.parametrize("is_masked", [True, False])
def test_coordinator_has_no_trace_of_a_single_update(
    tmp_path: Path, made: list[Small], is_masked: bool
) -> None:
    more = MASKED if is_masked else _OPEN
    small, sites = secret(tmp_path, made, rounds=1, more=more, names=FOUR, task=_NUMBERS)
    for seed, site in enumerate(sites):
        site.data.write_text(str(seed))
    begin(small, [site.agent for site in sites])
    assert [site.agent.wait() for site in sites] == [0] * 4
    small.coordinator.end()
    found = [_traces(small.data, seed) for seed in range(4)]
    assert all(not one for one in found) if is_masked else all(found)


# ---- with noise under the masks -----------------------------------------------------

NOISED = """
[security]
secure_aggregation = true
phase = "{phase}"
[privacy]
unit = "site"
epsilon = 50.0
clip = 10.0
[evaluation]
enabled = false
gate = false
"""


def test_sites_add_their_shares_of_the_noise_and_pay_for_it(
    tmp_path: Path, made: list[Small]
) -> None:
    small, sites = secret(tmp_path, made, rounds=2, more=NOISED, names=FOUR)
    begin(small, [site.agent for site in sites])
    assert [site.agent.wait() for site in sites] == [0] * 4
    small.coordinator.end()
    facts = facts_of(small)
    assert sum(isinstance(fact, m.AnswersClosed) for fact in facts) == 2
    charged = [fact for fact in facts if isinstance(fact, BudgetCharged)]
    assert [fact.round for fact in charged] == [1, 2]
    assert verify_directory(small.data).findings == []
    steps = models(small, facts)
    for before, after in pairwise(steps):
        off = np.array(after) - (np.array(before) + 0.5 * (1 - np.array(before)))
        assert 1e-3 < abs(off).max() < 20.0, "there is noise, and it is not out of all bounds"
    for site in sites:  # each has an account of its own, which was charged as well
        left = site.command("--json", "budget", "show")
        assert left.returncode == 0, left.stderr
        (budget,) = json.loads(left.stdout)["data"]["budgets"]
        assert budget["unit"] == "contribution"
        assert all(0 < window["spent"] <= 50.0 for window in budget["windows"]), budget


# ---- without masks ------------------------------------------------------------------

# A site that sends what it made as it is, as a plan without masks has it.
_OPENLY = """
import sys
from pathlib import Path
import numpy as np
from consortium.model import Update, save_update
from consortium.site.agent import Agent
from consortium.site.home import SiteHome
from consortium.site.secret_sums import SecretSums
home = SiteHome.open(Path(sys.argv[1]))
def openly(self, number, sharing, update, form):
    base = self._home.blobs.get(update)
    from consortium.model import read_update_header
    _, about, _ = read_update_header(base, form)
    return self._home.blobs.put(save_update(Update(np.full(3, 0.5, np.float32), 10.0, about)))
SecretSums.masked = openly
Agent(home, on_event=lambda event: print("{}", flush=True), until_finished=True).run()
"""


def test_update_without_masks_is_refused_and_the_others_are_summed(
    tmp_path: Path, made: list[Small]
) -> None:
    small, sites = secret(tmp_path, made, rounds=1, names=FOUR)
    openly = Process([sys.executable, "-c", _OPENLY, str(sites[0].home)], sites[0].agent.log)
    openly.start()
    small.others.append(openly)
    begin(small, [site.agent for site in sites[1:]])
    assert [site.agent.wait() for site in sites[1:]] == [0] * 3
    facts = facts_of(small)
    (rejected,) = [fact for fact in facts if isinstance(fact, f.UpdateRejected)]
    assert (rejected.seat, rejected.fault) == (1, f.Fault.DIMENSIONS)
    assert closed_in(facts, f.RoundClosed)[1] == (2, 3, 4)
    openly.kill()
    check_all(small, sites[1:], facts)


# A site that signs something else than who is in the sum.
_FALSELY = """
import sys
from pathlib import Path
from consortium.site.agent import Agent
from consortium.site.home import SiteHome
from consortium.site.secret_sums import SecretSums
home = SiteHome.open(Path(sys.argv[1]))
right = SecretSums.consent
def falsely(self, number, split):
    signature = self._home.key.sign(b"whatever").hex()
    return right(self, number, split).model_copy(update={"signature": signature})
SecretSums.consent = falsely
Agent(home, on_event=lambda event: print("{}", flush=True), until_finished=True).run()
"""


def test_signature_on_something_else_is_refused_and_the_others_are_summed(
    tmp_path: Path, made: list[Small]
) -> None:
    small, sites = secret(tmp_path, made, rounds=1, names=FOUR)
    falsely = Process([sys.executable, "-c", _FALSELY, str(sites[0].home)], sites[0].agent.log)
    falsely.start()
    small.others.append(falsely)
    begin(small, [site.agent for site in sites[1:]])
    assert [site.agent.wait() for site in sites[1:]] == [0] * 3
    facts = facts_of(small)
    assert closed_in(facts, m.ConsentsClosed)[1] == (2, 3, 4)
    assert closed_in(facts, f.RoundClosed)[1] == (1, 2, 3, 4)
    falsely.kill()
    check_all(small, sites[1:], facts)
    signed = [replace(one, seat=Seat(1)) for one in facts if isinstance(one, m.ConsentReceived)]
    assert [_complaint(small, facts, one) for one in signed] == [_NOT_SIGNED] * 3


_NOT_SIGNED = "the site did not sign this split"


def _complaint(small: Small, facts: list[Any], forged: m.ConsentReceived) -> str | None:
    """What an audit says of a log in which the first signature is this one."""
    state = Federation()
    for fact in facts:
        if isinstance(fact, m.ConsentReceived):
            break
        evolve(state, fact)
    directory = DataDirectory(small.data)
    try:
        return Evidence(directory.blobs, Tally()).complaint(state, forged)
    finally:
        directory.close()


# A coordinator that asks for the updates themselves, though the plan that was approved has masks.
_GREEDY = """
import consortium.coordinator.desk as desk
from consortium.core import duties as d
from consortium.core.federation import owed_by
def greedy(state, seat):
    duty = owed_by(state, seat)
    if not isinstance(duty, d.JoinSum):
        return duty
    ground = duty.base, duty.server_state, duty.plan, duty.task
    return d.Train(duty.round, duty.seat, *ground, duty.deadline_ms, False)
desk.owed_by = greedy
"""


def test_site_gives_nothing_to_a_coordinator_that_drops_the_masks(
    tmp_path: Path, made: list[Small]
) -> None:
    small, sites = secret(tmp_path, made, rounds=1, names=FOUR, prelude=_GREEDY)
    begin(small, [site.agent for site in sites])
    wait_for(lambda: all(site.agent.told("trouble") for site in sites), 60.0)
    told = [event for site in sites for event in site.agent.events() if event["kind"] == "trouble"]
    assert any("without the masks that its plan has" in event["text"] for event in told)
    left = s.InvitationTaken | s.UpdateSpooled | s.SumJoined
    assert not [fact for site in sites for fact in site.facts() if isinstance(fact, left)]


def test_federation_with_masks_takes_no_plan_without_them(
    tmp_path: Path, made: list[Small]
) -> None:
    small, _ = secret(tmp_path, made, rounds=1, names=FOUR)
    small.coordinator.end()
    plan = small.folder / "study" / "consortium.toml"
    plan.write_text(plan.read_text().replace(MASKED.format(phase="20s"), _OPEN))
    write_lock(plan.parent, *make_lock(load_study(plan, small.folder / "sample.csv"), seed=1))
    small.coordinator.start()
    assert small.coordinator.wait() != 0
    assert "the sums of this federation are secret" in small.coordinator.log.read_text()


def test_site_whose_people_ask_for_masks_declines_a_plan_without_them(
    tmp_path: Path, made: list[Small]
) -> None:
    small, sites = secret(tmp_path, made, rounds=1, names=FOUR, more=_OPEN)
    assert sites[0].command("site", "policy", "--set", "masks=required").returncode == 0
    begin(small, [site.agent for site in sites])
    assert [site.agent.wait() for site in sites] == [0] * 4
    (declined,) = [fact for fact in sites[0].facts() if isinstance(fact, s.InvitationDeclined)]
    assert declined.failure is f.Failure.POLICY
    assert not any(isinstance(fact, s.UpdateSpooled) for fact in sites[0].facts())


def test_site_that_knows_too_few_of_the_others_gives_no_shares(
    tmp_path: Path, made: list[Small]
) -> None:
    small, sites = secret(tmp_path, made, rounds=2, names=FOUR)
    strangers = ",".join(("ab" * 32, "cd" * 32))
    wanted = ("--set", f"known={strangers}", "--set", "min_known=2")
    assert sites[0].command("site", "policy", *wanted).returncode == 0
    begin(small, [site.agent for site in sites])
    wait_for(lambda: sites[0].agent.told("declined"), 60.0)
    assert not any(isinstance(fact, s.SessionPinned) for fact in sites[0].facts())
    shown = sites[0].command("site", "members").stdout
    assert "this site" in shown and shown.count("not known") == 3
    keys = [line.split()[6] for line in shown.splitlines()[2:4]]
    assert sites[0].command("site", "policy", "--set", f"known={','.join(keys)}").returncode == 0
    assert [site.agent.wait() for site in sites] == [0] * 4
    members = closed_in(facts_of(small), f.RoundClosed)
    assert 1 not in members[1], "it did not know anybody"
