"""The explorer finds nothing in the core, and every bug that was planted in it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from consortium.core import facts as f
from consortium.core.federation import replay
from consortium.core.ids import Seat
from consortium.core.tables import Step
from consortium.testing import explore as command
from consortium.testing import federations as small
from consortium.testing.alphabet import SEEDS, Alphabet, founding
from consortium.testing.bugs_of_site import SITE_BUGS, SiteBug
from consortium.testing.fingerprint import fingerprint
from consortium.testing.patches import Bug, planted
from consortium.testing.planted import BUGS, hunt, hunt_at_site
from consortium.testing.walk import Exploration, explore
from consortium.testing.walk_of_site import walk_of_site

QUICK = (
    small.TRAINING,
    small.SELECTION,
    small.QUORUM,
    small.UNANIMOUS,
    small.SCREENED,
    small.ROUNDS,
    small.SHORT,
    small.BUFFERED,
    small.FRESH,
    small.PAID,
    small.MASKED,
    small.SCORED,
    small.MASKED_SCORED,
)

CAUGHT_BY = {
    "an update at the deadline is refused (>= for >)": "updates_in_time_are_taken",
    "a late update is counted": "an_update_is_received_in_time",
    "an uninvited site is admitted": "an_update_is_received_in_time",
    "a second update replaces the first": "an_update_is_received_in_time",
    "the same update again is refused": "the_same_update_again_is_fine",
    "an update that failed its checks is counted": "an_update_passed_its_checks",
    "a check of other bytes is believed": "an_update_passed_its_checks",
    "a loud update is counted": "members_are_all_that_count",
    "there is one extension too many": "extensions_are_limited",
    "extensions are unbounded": "every_round_ends",
    "checks that run at the deadline are thrown away": "a_closing_is_due",
    "a round closes at its quorum though all are waited for": "a_closing_is_due",
    "the quorum is ignored at closing": "a_closing_is_due",
    "a tick at the deadline counts as late (>= for >)": "a_shortage_calls_backups",
    "the round never ends": "every_round_ends",
    "backups are not invited": "a_shortage_calls_backups",
    "backups need not be eligible": "backups_are_eligible",
    "the invited need not be eligible": "the_invited_are_eligible",
    "an extension shortens the deadline": "a_deadline_moves_later",
    "a site that dropped out is still waited for": "the_same_again_changes_nothing",
    "a site that was revoked is still waited for": "a_shortage_calls_backups",
    "nobody notices that all have answered": "no_closing_is_overdue",
    "the update that closes the round is left out": "members_are_all_that_count",
    "the seed is drawn again": "the_seed_is_drawn_once",
    "a decision changes the state": "decide_changes_nothing",
    "an excluded update stays in the sum": "a_failure_has_its_reason",
    "the screen is skipped": "a_screened_round_is_summed_after_its_screen",
    "a sum is taken before the screen": "the_sum_is_over_the_members",
    "the quorum is ignored after the screen": "a_screen_is_of_the_members",
    "a screen of former members is taken": "a_screen_is_of_the_members",
    "a screen excludes whom it likes": "who_is_excluded_stands_out",
    "an update is excluded twice": "nobody_is_excluded_twice",
    "the screen counts exclusions and makes none": "a_failure_has_its_reason",
    "the excluded are members again after the sum": "nobody_excluded_is_in_the_sum",
    "a departed member stays in the screen": "members_are_on_the_roster_until_the_sum",
    "nobody owes the screen": "every_round_ends",
    "a departed member stays in the sum": "members_are_on_the_roster_until_the_sum",
    "a sum over former members is taken": "the_sum_is_over_the_members",
    "a second sum overwrites the first": "the_sum_is_over_the_members",
    "a site that is no member evaluates": "an_evaluation_is_of_the_candidate",
    "an evaluation of another model is taken": "an_evaluation_is_of_the_candidate",
    "a cancelled round takes evaluations": "evolve_never_fails",
    "the evaluation closes at its deadline (>= for >)": "an_evaluation_is_waited_for",
    "evidence is lost after the evaluation": "evidence_is_fixed_once_closed",
    "a verdict on another model is taken": "a_verdict_has_its_evidence",
    "a verdict comes before the evaluation is closed": "a_verdict_has_its_evidence",
    "a kept candidate is published": "what_is_published_was_accepted",
    "a model is published before it is released": "what_is_published_was_accepted",
    "the version is not increased": "a_version_is_one_more",
    "nobody owes the verdict": "every_round_ends",
    "the federation never finishes": "round_numbers_are_counted",
    "a receipt promises too early": "receipts_go_forwards",
    "the codec loses norms": "replay_gives_the_same_state",
    "a member passes on after it was counted": "who_is_left_passes_on",
    "what was received and not counted is lost": "who_is_left_passes_on",
    "a site that has left passes on": "who_passes_on_was_not_counted",
    "a roll-back withdraws no invitation": "another_model_withdraws_what_passes",
    "a late update is taken between rounds": "an_update_is_received_in_time",
    "a model that is too old is kept": "the_kept_can_still_count",
    "an invitation that is late is kept": "the_kept_can_still_count",
    "an old update is checked against the new model": "an_open_round_owes_its_step",
    "the age of an update is forgotten": "every_member_is_summed_once",
    "a kept invitation gets another deadline": "what_passes_stays_the_same",
    "a round opens before it is paid for": "a_round_opens_when_it_is_paid",
    "an account is asked while it is asked": "the_same_again_changes_nothing",
    "an answer about another round opens this one": "costs_are_held_as_was_asked",
    "an account that has forgotten is believed": "costs_are_held_as_was_asked",
    "a refusal is not waited for": "a_refusal_pauses_or_finishes",
    "a budget that is spent finishes nothing": "a_refusal_pauses_or_finishes",
    "two plans ask by the same number": "what_will_not_open_goes_back",
    "what was asked for does not go back at the end": "what_will_not_open_goes_back",
    "a sum is not charged": "what_is_paid_for_is_charged",
    "invitations are not charged": "what_is_paid_for_is_charged",
    "what sites spend is charged at the closing": "what_is_paid_for_is_charged",
    "what was charged is returned": "payments_go_forwards",
    "what was not needed is not returned": "what_is_held_goes_back_with_a_failure",
    "the account is never told": "every_account_is_told",
    "the account is told the opposite": "every_account_is_told",
    "the account is said to know what is not decided": "an_account_is_told_once",
    "what was paid before is doubted": "facts_are_legal",
    "a late update is let in after the split": "nobody_is_laid_bare",
    "an update is accepted after the split": "nobody_is_laid_bare",
    "the split has another name after a restart": "the_split_never_changes",
    "the split is made again when a member does not answer": "no_secret_sum_is_below_its_quorum",
    "a revoked member is taken out of the split": "nobody_is_laid_bare",
    "a member revoked after the split is summed": "members_are_on_the_roster_until_the_sum",
    "a site that dropped out counts as a member": "answered_seats_sent_an_update",
    "a secret sum is closed below its quorum": "no_secret_sum_is_below_its_quorum",
    "members are asked before the split is on record": "sites_are_asked_for_what_the_step_lacks",
    "keys of the last round are used again": "a_round_has_its_own_keys",
    "keys of another round are taken": "keys_are_given_once_and_are_ones_own",
    "two sites have the same keys": "no_two_sites_have_the_same_key",
    "other keys replace the first": "keys_are_given_once_and_are_ones_own",
    "backups are invited to a secret sum": "nobody_comes_to_a_secret_sum_later",
    "the list of sharers changes after sharing": "the_session_never_changes",
    "the session changes while seeds are shared": "the_session_never_changes",
    "sites train though too few have shared": "a_secret_sum_has_its_quorum",
    "the signature of a site that is no member counts": "only_members_sign",
    "members are asked when too few have signed the split": "exchanges_close_when_they_are_due",
    "members are asked before anybody has signed": "a_secret_sum_has_its_quorum",
    "a second signature replaces the first": "only_members_sign",
    "who signs after enough others is turned away": "what_is_waited_for_is_taken",
    "members are asked at the deadline, agreed or not": "exchanges_close_when_they_are_due",
    "the answer of a site that is no member counts": "only_members_answer",
    "a second answer replaces the first": "only_members_answer",
    "a secret sum is made with too few answers": "exchanges_close_when_they_are_due",
    "silent sites are waited for for ever": "every_round_ends",
    "a phase is over at its deadline (>= for >)": "a_failure_has_its_reason",
    "a secret sum is made before anybody has answered": "a_secret_sum_has_its_quorum",
    "who dropped out is forgotten when masks are lifted": "what_is_lifted_is_what_was_agreed",
    "a sum's score is taken for the candidate's": "a_score_is_of_the_base",
    "a sum's scores are not written down": "a_sum_tells_its_scores",
    "a sum's samples are lost": "a_score_is_of_the_base",
    "every version is an improvement": "an_improvement_is_one",
    "a low loss ends the federation in the middle of a round": "a_federation_finishes_in_time",
    "scores of other metrics are taken": "facts_are_legal",
    "a low loss of the base ends nothing": "scores_end_a_federation_one_round_later",
    "a verdict wears no patience out": "patience_goes_by_scores",
}

TINY_MASKED = small.Small(
    "tiny, masked",
    replace(small.MASKED.terms, target=3),
    Alphabet(sites=3, seeds=SEEDS[:1], outcomes=(f.Outcome.ACCEPTED,), is_cancelled=False),
)
CAUGHT_AT_SITE = {
    "a site signs a second split": "one_split_a_round_is_signed",
    "a site answers by a second split": "answers_are_by_the_split_that_was_signed",
    "a site answers by a split that it has not signed": "answers_are_by_the_split_that_was_signed",
    "a site answers before it has seen others' signatures": (
        "answers_are_by_the_split_that_was_signed"
    ),
    "a site remembers its split in memory alone": "decide_changes_nothing",
    "a site shares its seeds in a second session": "seeds_are_shared_in_one_session_a_round",
    "a site masks by a second list of sharers": "pins_stay",
    "a site sends a second update under one mask": "a_round_has_one_masked_update",
    "a site sends plainly what was to be masked": "pins_stay",
    "a site signs before it has sent": "steps_follow_each_other",
    "a site keeps its pins for the next round": "a_new_round_begins_with_nothing",
    "a site joins a round that it has left": "pins_stay",
    "a site comes back to an older round": "rounds_go_forwards",
    "a site shares its seeds against its will": "nothing_leaves_against_the_sites_will",
    "a site replaces what it has written down": "a_step_has_one_note",
    "a site is deaf after a lost reply": "an_honest_coordinator_is_served",
}

# One update is enough, and both sites must be ready: all steps within a few hundred states.
TINY = small.Small(
    "tiny",
    replace(small.EVALUATED, quorum=1, wait_for=2, target=1, evaluation_quorum=1, is_screened=True),
    Alphabet(sites=2, reporting=(Seat(2),), seeds=SEEDS[:1]),
)


@pytest.fixture(scope="module")
def walks() -> dict[str, Exploration]:
    return {one.name: explore(one.terms, one.alphabet) for one in QUICK}


@pytest.mark.parametrize("name", [one.name for one in QUICK])
def test_no_rule_is_broken_in_any_reachable_state(walks: dict[str, Exploration], name: str) -> None:
    seen = walks[name]
    assert seen.violation is None, command.describe(seen.violation)
    assert seen.states > 1_000 and seen.changes > seen.states and seen.refusals > seen.states


def test_every_step_of_a_round_is_reached(walks: dict[str, Exploration]) -> None:
    reached = {step for seen in walks.values() for step in seen.steps}
    assert reached == {step.name for step in Step}


LARGE = (
    small.EVALUATION,
    small.PAID_AT_SITES,
    small.PAID_BUFFERED,
    small.SHORT_MASKED,
    small.MASKED_TWICE,
)


@pytest.mark.slow
@pytest.mark.parametrize("one", LARGE, ids=lambda one: one.name)
def test_no_rule_is_broken_in_a_large_federation(one: small.Small) -> None:
    seen = explore(one.terms, one.alphabet)
    assert seen.violation is None, command.describe(seen.violation)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    assert hunt(bug).rule == CAUGHT_BY[bug.name]


def test_a_site_tells_one_story_a_round() -> None:
    seen = walk_of_site()
    assert seen.violation is None, command.describe(seen.violation)
    assert seen.states > 1_000 and seen.changes > seen.states and seen.refusals > seen.states


@pytest.mark.parametrize("bug", SITE_BUGS, ids=lambda bug: bug.name)
def test_a_bug_planted_at_a_site_is_caught(bug: SiteBug) -> None:
    assert hunt_at_site(bug).rule == CAUGHT_AT_SITE[bug.name]


def test_planted_bugs_are_taken_out_again() -> None:
    for bug in (*BUGS, *SITE_BUGS):
        with planted(bug):
            pass
    assert explore(TINY.terms, TINY.alphabet).violation is None
    assert walk_of_site().violation is None


def test_a_walk_is_the_same_every_time() -> None:
    first, second = (explore(TINY.terms, TINY.alphabet) for _ in range(2))
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)


def test_a_trace_names_every_input_and_its_facts() -> None:
    bug = next(bug for bug in BUGS if bug.name == "a late update is counted")
    with planted(bug):
        found = explore(bug.where.terms, bug.where.alphabet).violation
    assert found is not None
    inputs = [type(item).__name__ for item, _ in found.trace]
    assert inputs == ["OpenRound", "Drawn", "Submit"]
    assert isinstance(found.trace[-1][1][0], f.UpdateReceived)
    text = command.describe(found)
    assert "BROKEN  an_update_is_received_in_time" in text
    assert "3. Submit(round=1, seat=1, update='update of 1', now_ms=1012)" in text


def test_fingerprints_take_no_notice_of_order() -> None:
    state = replay(founding(TINY.terms, TINY.alphabet))
    other = state.clone()
    other.roster.members = dict(reversed(state.roster.members.items()))
    assert fingerprint(other) == fingerprint(state)
    other.roster.next_seat += 1
    assert fingerprint(other) != fingerprint(state)


def test_the_command_prints_one_json_object_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ALL", (TINY, TINY_MASKED))
    monkeypatch.setattr(command, "BUGS", BUGS[:2])
    monkeypatch.setattr(command, "SITE_BUGS", SITE_BUGS[:1])
    assert command.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [walk["name"] for walk in report["walks"]] == ["tiny", "tiny, masked", "a site"]
    found = [catch["bug"] for catch in report["planted"]]
    assert found == [bug.name for bug in (*BUGS[:2], SITE_BUGS[0])]
    assert report["has_failed"] is False


def test_the_command_fails_when_a_bug_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = Bug("nothing at all", TINY, lambda patches: None)
    monkeypatch.setattr(command, "BUGS", (harmless,))
    monkeypatch.setattr(command, "SITE_BUGS", ())
    assert command.main(["--planted"]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_the_command_fails_with_the_trace_when_a_rule_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ALL", (small.TRAINING,))
    with planted(BUGS[0]):
        assert command.main(["--clean-only"]) == 1
    assert "BROKEN  updates_in_time_are_taken" in capsys.readouterr().out
