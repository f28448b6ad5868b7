"""The agent as people run it: real processes, killed and restarted, on loopback over TLS."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consortium.core import site_facts as s
from consortium.core.facts import Failure
from consortium.drive.directory import SIGNER_NAME
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Verifier
from consortium.ledger.proof import read_proof, verify_proof
from consortium.site.home import SiteHome
from consortium.site.studies import held_model
from tests.site.federation import Site, Small, found, wait_for

FINISH = ("--until-finished",)
PRIVATE = """
[privacy]
unit = "local"
epsilon_per_round = 1.0
test_records = "public"
[evaluation]
gate = false  # so much noise makes no model better
"""


@pytest.fixture
def made() -> Iterator[list[Small]]:
    """Federations that a test makes: whatever they started ends with it."""
    federations: list[Small] = []
    yield federations
    for small in federations:
        small.end()


def three(small: Small, **options: Any) -> list[Site]:
    return [small.add(name, options=FINISH, **options) for name in ("one", "two", "three")]


def check_receipts(site: Site, rounds: list[int]) -> None:
    home = SiteHome.open(site.home)
    held = home.enrolment
    for number in rounds:
        text = home.receipt(number)
        assert text is not None
        key = Verifier(SIGNER_NAME, bytes.fromhex(held.log_key))
        verify_proof(read_proof(text), origin_of(held.federation), [key])


def child_of(site: Site) -> int | None:
    """The process that runs the site's task."""
    assert site.agent.running is not None
    task = Path(f"/proc/{site.agent.running.pid}/task")
    for thread in task.iterdir():
        for pid in (thread / "children").read_text().split():
            return int(pid)
    return None


def test_three_sites_finish_three_rounds(tmp_path: Path, made: list[Small]) -> None:
    small = found(tmp_path)
    made.append(small)
    sites = three(small)
    for site in sites:
        site.agent.start()
    assert [site.agent.wait() for site in sites] == [0, 0, 0]
    models = {held_model(SiteHome.open(site.home)) for site in sites}
    assert {model.version for model in models if model} == {3}
    assert len({model.model for model in models if model}) == 1
    for site in sites:
        assert site.trained() == [1, 2, 3]
        check_receipts(site, [1, 2, 3])
        assert site.has(s.RoundSettled, 3)
    status = small.status()
    assert (status["version"], status["rounds"]["done"]) == (3, 3)


def test_site_killed_in_training_comes_back_and_counts(tmp_path: Path, made: list[Small]) -> None:
    small = found(tmp_path, rounds=1)
    made.append(small)
    sites = three(small)
    sites[0].slow_down()
    for site in sites:
        site.agent.start()
    wait_for(sites[0].trained)
    child = wait_for(lambda: child_of(sites[0]))
    sites[0].agent.kill()
    wait_for(lambda: not Path(f"/proc/{child}").exists(), 2)
    sites[0].go_on()
    sites[0].agent.start()
    assert [site.agent.wait() for site in sites] == [0, 0, 0]
    assert sites[0].trained() == [1, 1]  # what was never spooled is made again
    assert sites[1].trained() == [1]
    check_receipts(sites[0], [1])


def test_base_that_was_damaged_while_the_agent_was_away_is_fetched_anew(
    tmp_path: Path, made: list[Small]
) -> None:
    small = found(tmp_path, rounds=1)
    made.append(small)
    sites = three(small)
    sites[0].slow_down()
    for site in sites:
        site.agent.start()
    wait_for(sites[0].trained)
    sites[0].agent.kill()
    (taken,) = [fact for fact in sites[0].facts() if isinstance(fact, s.InvitationTaken)]
    path = sites[0].home / "blobs" / taken.base.hex()[:2] / taken.base.hex()[2:]
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + b"\x00\x00\x80\x3f")  # another number, finite too
    assert path.read_bytes() != whole
    sites[0].agent.start()
    wait_for(lambda: len(sites[0].trained()) == 2)
    assert path.read_bytes() == whole
    sites[0].go_on()
    assert [site.agent.wait() for site in sites] == [0, 0, 0]
    assert small.status()["version"] == 1
    check_receipts(sites[0], [1])


def test_what_was_spooled_is_sent_and_never_made_again(tmp_path: Path, made: list[Small]) -> None:
    """The coordinator is killed while a site trains, the site when it has trained."""
    small = found(tmp_path, rounds=2)
    made.append(small)
    sites = three(small)
    sites[0].slow_down()
    for site in sites:
        site.agent.start()
    wait_for(lambda: sites[0].trained() and sites[1].has(s.ReceiptKept, 1))
    wait_for(lambda: sites[2].has(s.ReceiptKept, 1))
    small.coordinator.kill()
    sites[0].go_on()
    wait_for(lambda: sites[0].has(s.UpdateSpooled, 1))
    sites[0].agent.kill()
    assert not sites[0].has(s.ReceiptKept, 1)
    sites[0].agent.start()
    small.start_coordinator()
    assert [site.agent.wait() for site in sites] == [0, 0, 0]
    assert [site.trained() for site in sites] == [[1, 2]] * 3
    assert small.status()["version"] == 2
    for site in sites:
        check_receipts(site, [1, 2])


def test_hold_ends_the_work_at_once_and_resume_goes_on(tmp_path: Path, made: list[Small]) -> None:
    small = found(tmp_path, rounds=2, quorum=2, sites=3)
    made.append(small)
    sites = three(small)
    sites[0].slow_down()
    for site in sites:
        site.agent.start()
    wait_for(sites[0].trained)
    child = wait_for(lambda: child_of(sites[0]))
    assert sites[0].command("site", "hold").returncode == 0
    wait_for(lambda: not Path(f"/proc/{child}").exists(), 3)
    wait_for(lambda: sites[0].has(s.FailureTold, 1))
    sites[0].go_on()
    for site in sites[1:]:
        assert site.agent.wait() == 0
    assert small.ask("rounds/1")["number"] == 1
    declined = [fact for fact in sites[0].facts() if isinstance(fact, s.InvitationDeclined)]
    assert [(fact.round, fact.failure) for fact in declined] == [(2, Failure.POLICY)]
    assert sites[0].command("site", "resume").returncode == 0
    assert not any(isinstance(fact, s.UpdateSpooled) for fact in sites[0].facts())


def test_site_waits_for_approval_and_takes_the_same_round(
    tmp_path: Path, made: list[Small]
) -> None:
    small = found(tmp_path, rounds=1)
    made.append(small)
    sites = [small.add(name, options=FINISH) for name in ("one", "two")]
    sites.append(small.add("late", is_approved=False, options=FINISH))
    for site in sites:
        site.agent.start()
    late = sites[2]
    wait_for(lambda: late.agent.told("approval"))
    assert late.trained() == []
    wait_for(lambda: "E0312" in str(small.ask("sites")))
    asked = late.command("--json", "site", "review")
    assert '"approved": false' in asked.stdout
    refused = late.command("site", "approve", "--task", "0" * 64)
    assert refused.returncode == 5
    task = asked.stdout.split('"task": "')[1][:64]
    assert late.command("site", "approve", "--task", task).returncode == 0
    assert late.agent.wait() == 0
    assert late.trained() == [1]
    check_receipts(late, [1])


def test_policy_declines_with_its_code(tmp_path: Path, made: list[Small]) -> None:
    small = found(tmp_path, rounds=1, quorum=2, sites=3)
    made.append(small)
    sites = three(small)
    done = sites[0].command("site", "policy", "--set", 'may_leave=["update", "scores"]')
    assert done.returncode == 0
    for site in sites:
        site.agent.start()
    assert [site.agent.wait() for site in sites] == [0, 0, 0]
    assert sites[0].trained() == []
    assert sites[0].has(s.FailureTold, 1)
    assert small.status()["version"] == 1


def test_site_with_a_lower_limit_of_its_own_sits_the_round_out(
    tmp_path: Path, made: list[Small]
) -> None:
    small = found(tmp_path, rounds=2, quorum=2, sites=3, more=PRIVATE)
    made.append(small)
    sites = three(small)
    assert sites[0].command("site", "policy", "--set", "epsilon_weekly=1.2").returncode == 0
    for site in sites:
        site.agent.start()
    assert [site.agent.wait() for site in sites] == [0, 0, 0]
    assert [site.trained() for site in sites] == [[1], [1, 2], [1, 2]]
    (declined,) = [fact for fact in sites[0].facts() if isinstance(fact, s.InvitationDeclined)]
    assert (declined.round, declined.failure) == (2, Failure.BUDGET)
    (event,) = [event for event in sites[0].agent.events() if event["kind"] == "declined"]
    assert event["code"] == "E0501" and "it frees at 20" in event["text"]
    assert small.status()["version"] == 2
    told = sites[0].command("site", "status").stdout
    assert "[E0501] round 2:" in told
    assert "in 7 days: 1 spent (at most 1.2)" in told
    outbox = sites[0].command("site", "outbox").stdout
    assert "1 (delta 1e-05)" in outbox


def test_site_killed_in_training_pays_once(tmp_path: Path, made: list[Small]) -> None:
    small = found(tmp_path, rounds=1, more=PRIVATE)
    made.append(small)
    sites = three(small)
    for site in sites:  # enough for one round: a second reservation would be refused
        assert site.command("site", "policy", "--set", "epsilon_lifetime=1.2").returncode == 0
    sites[0].slow_down()
    for site in sites:
        site.agent.start()
    wait_for(sites[0].trained)
    sites[0].agent.kill()
    sites[0].go_on()
    sites[0].agent.start()
    assert [site.agent.wait() for site in sites] == [0, 0, 0]
    assert sites[0].trained() == [1, 1]
    assert small.status()["version"] == 1
    check_receipts(sites[0], [1])


def test_site_whose_ledger_is_an_old_copy_refuses_to_spend(
    tmp_path: Path, made: list[Small]
) -> None:
    small = found(tmp_path, rounds=2, quorum=2, sites=3, more=PRIVATE)
    made.append(small)
    sites = three(small)
    for site in sites:
        site.agent.start()
    wait_for(lambda: sites[0].has(s.ReceiptKept, 1))
    assert sites[0].agent.end() == 0
    trained = sites[0].trained()
    shutil.rmtree(sites[0].home / "ledger")
    sites[0].agent.start()
    assert sites[0].agent.wait() == 7
    assert "privacy ledger" in sites[0].agent.log.read_text()
    assert sites[0].trained() == trained
    wait_for(lambda: "E0905" in str(small.ask("sites")))


def test_coordinator_from_an_old_backup_is_refused_until_it_is_mended(
    tmp_path: Path, made: list[Small]
) -> None:
    small = found(tmp_path, duration="120s")
    made.append(small)
    sites = three(small)
    small.coordinator.end()
    old = small.copy("old", small.data)
    small.start_coordinator()
    sites[0].slow_down()
    for site in sites:
        site.agent.start()
    wait_for(sites[0].trained)
    small.coordinator.end()
    new = small.data.rename(tmp_path / "new")
    shutil.copytree(old, small.data)
    small.start_coordinator()
    wait_for(lambda: all(site.agent.told("refused") for site in sites), 60.0)
    (refused,) = [event for event in sites[0].agent.events() if event["kind"] == "refused"]
    assert refused["code"] == "E0903"
    wait_for(lambda: "E0903" in str(small.ask("sites")))
    small.coordinator.end()
    shutil.rmtree(small.data)
    new.rename(small.data)
    small.start_coordinator()
    sites[0].go_on()
    assert [site.agent.wait() for site in sites] == [0, 0, 0]
    assert small.status()["version"] == 3


def test_site_from_an_old_backup_refuses_to_spend(tmp_path: Path, made: list[Small]) -> None:
    small = found(tmp_path, rounds=2, quorum=2, sites=3)
    made.append(small)
    sites = three(small)
    old = small.copy("old", sites[0].home)
    for site in sites:
        site.agent.start()
    wait_for(lambda: sites[0].has(s.ReceiptKept, 1))
    assert sites[0].agent.end() == 0
    shutil.rmtree(sites[0].home)
    old.rename(sites[0].home)
    trained = sites[0].trained()
    sites[0].agent.start()
    assert sites[0].agent.wait() == 7
    assert "E0905" in sites[0].agent.log.read_text()
    assert sites[0].trained() == trained
    wait_for(lambda: "E0905" in str(small.ask("sites")))


def test_signal_ends_the_agent_and_its_child_within_two_seconds(
    tmp_path: Path, made: list[Small]
) -> None:
    small = found(tmp_path, rounds=1)
    made.append(small)
    sites = three(small)
    sites[0].slow_down()
    for site in sites:
        site.agent.start()
    wait_for(sites[0].trained)
    child = wait_for(lambda: child_of(sites[0]))
    begin = time.monotonic()
    assert sites[0].agent.end(2.0) == 0
    assert time.monotonic() - begin < 2.0
    assert not Path(f"/proc/{child}").exists()
    assert not sites[0].has(s.WorkFailed, 1)  # it goes on another time
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_second_agent_in_one_home_is_kept_out(tmp_path: Path, made: list[Small]) -> None:
    small = found(tmp_path)
    made.append(small)
    site = small.add("one")
    site.agent.start()
    wait_for(lambda: site.agent.told("connected"))
    second = site.command("agent")
    assert second.returncode == 1
    assert "E0604" in second.stderr
    assert site.agent.end() == 0
