"""Planted bugs from the closing to the end of a round, and in what is told and written of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consortium.core import answers, codec, ending, owing, verdict
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.ids import Seat
from consortium.core.state import Federation, Round
from consortium.core.tables import ROUND, SCREENED_ROUND, Step
from consortium.core.terms import Terms
from consortium.testing.federations import ROUNDS, SHORT, SHORT_SCREENED
from consortium.testing.patches import Bug, Facts, Patches, Wrapper, believing, nothing

# ---- the screen ---------------------------------------------------------------------


def _keep_excluded(patches: Patches) -> None:
    def record(real: Wrapper, state: Federation, fact: f.UpdateExcluded) -> None:
        assert state.round is not None
        members = state.round.members.copy()
        real(state, fact)
        state.round.members = members

    patches.record(f.UpdateExcluded, record)


def _skip_screen(patches: Patches) -> None:
    patches.move(SCREENED_ROUND, (Step.TRAINING, f.RoundClosed), Step.SUMMING)


def _sum_unscreened(patches: Patches) -> None:
    def summed(real: Wrapper, state: Federation, terms: Terms, item: i.Summed) -> Any:
        is_early = state.round is not None and state.round.step is Step.SCREENING
        return real(believing(state, step=Step.SUMMING) if is_early else state, terms, item)

    patches.rule(i.Summed, summed)
    patches.move(SCREENED_ROUND, (Step.SCREENING, f.Aggregated), Step.EVALUATING)


def _screen_below_quorum(patches: Patches) -> None:
    def screened(real: Wrapper, state: Federation, terms: Terms, item: i.Screened) -> Any:
        is_some = len(item.excluded) < item.count
        return real(believing(state, quorum=1) if is_some else state, terms, item)

    patches.rule(i.Screened, screened)


def _take_stale_screen(patches: Patches) -> None:
    def screened(real: Wrapper, state: Federation, terms: Terms, item: i.Screened) -> Any:
        count = len(state.round.members) if state.round else item.count
        return real(state, terms, replace(item, count=count))

    patches.rule(i.Screened, screened)


def _exclude_without_reason(patches: Patches) -> None:
    patches.attribute(verdict, "_check_excluded", nothing)


def _exclude_twice(patches: Patches) -> None:
    def check(real: Wrapper, open_round: Round, excluded: tuple[Any, ...]) -> Any:
        return real(open_round, tuple(dict.fromkeys(excluded)))

    patches.attribute(verdict, "_check_excluded", check)


def _forget_exclusions(patches: Patches) -> None:
    def screened(real: Wrapper, *args: Any) -> Any:
        facts: Facts = real(*args)
        return tuple(fact for fact in facts if not isinstance(fact, f.UpdateExcluded))

    patches.rule(i.Screened, screened)


def _readmit_excluded(patches: Patches) -> None:
    def record(real: Wrapper, state: Federation, fact: f.Aggregated) -> None:
        real(state, fact)
        assert state.round is not None
        for seat, why in state.round.fallen.items():
            if isinstance(why, f.Fault) and why in f.ANOMALIES:
                state.round.members[seat] = None

    patches.record(f.Aggregated, record)


def _screen_departed(patches: Patches) -> None:
    def remove(real: Wrapper, open_round: Round, *args: Any) -> Any:
        return () if open_round.step is Step.SCREENING else real(open_round, *args)

    patches.attribute(verdict, "remove_member", remove)


def _forget_screen(patches: Patches) -> None:
    patches.move(owing._OWED, Step.SCREENING, nothing)


# ---- the sum and the evaluation -----------------------------------------------------


def _keep_departed(patches: Patches) -> None:
    patches.attribute(verdict, "remove_member", nothing)


def _take_stale_sum(patches: Patches) -> None:
    def summed(real: Wrapper, state: Federation, terms: Terms, item: i.Summed) -> Any:
        count = len(state.round.members) if state.round else item.count
        return real(state, terms, replace(item, count=count))

    patches.rule(i.Summed, summed)


def _take_second_sum(patches: Patches) -> None:
    def summed(real: Wrapper, state: Federation, terms: Terms, item: i.Summed) -> Any:
        present = state.round
        is_later = present is not None and present.step is Step.EVALUATING
        is_other = present is not None and present.model != item.model
        changed = believing(state, step=Step.SUMMING) if is_later and is_other else state
        return real(changed, terms, item)

    patches.rule(i.Summed, summed)
    patches.move(ROUND, (Step.EVALUATING, f.Aggregated), Step.EVALUATING)


def _let_anybody_evaluate(patches: Patches) -> None:
    def score(real: Wrapper, state: Federation, terms: Terms, item: i.Score) -> Any:
        present = state.round
        if present is None or present.step is not Step.EVALUATING:
            return real(state, terms, item)
        members, unheard = {item.seat: None, **present.members}, {item.seat: None}
        invited = {item.seat: 9, **present.invited}
        changed = believing(state, members=members, unheard=unheard, invited=invited)
        return real(changed, terms, item)

    def record(real: Wrapper, state: Federation, fact: f.Evaluated) -> None:
        assert state.round is not None
        state.round.unheard.setdefault(fact.seat)
        real(state, fact)

    patches.rule(i.Score, score)
    patches.record(f.Evaluated, record)


def _evaluate_other_model(patches: Patches) -> None:
    def score(real: Wrapper, state: Federation, terms: Terms, item: i.Score) -> Any:
        model = state.round.model if state.round and state.round.model else item.model
        return real(state, terms, replace(item, model=model))

    patches.rule(i.Score, score)


def _evaluate_cancelled(patches: Patches) -> None:
    def score(real: Wrapper, state: Federation, terms: Terms, item: i.Score) -> Any:
        if state.round is not None or state.ended is None:
            return real(state, terms, item)
        reopened = state.clone()
        reopened.round = state.ended.clone()
        reopened.round.step = Step.EVALUATING
        return real(reopened, terms, item)

    patches.rule(i.Score, score)


def _close_evaluation_early(patches: Patches) -> None:
    def tick(real: Wrapper, open_round: Round, now_ms: int) -> Any:
        early = open_round.clone()
        early.evaluate_by_ms -= 1
        return real(early, now_ms)

    patches.attribute(verdict, "tick_evaluation", tick)


def _change_evidence(patches: Patches) -> None:
    def record(real: Wrapper, state: Federation, fact: f.SiteDeparted) -> None:
        real(state, fact)
        if state.round is not None:
            state.round.evaluations.pop(fact.seat, None)

    patches.record(f.SiteDeparted, record)


# ---- the verdict and the end --------------------------------------------------------


def _judge_other_model(patches: Patches) -> None:
    def judge(real: Wrapper, state: Federation, terms: Terms, item: i.Verdict) -> Any:
        model = state.round.model if state.round and state.round.model else item.model
        return real(state, terms, replace(item, model=model))

    patches.rule(i.Verdict, judge)


def _judge_early(patches: Patches) -> None:
    def judge(real: Wrapper, state: Federation, terms: Terms, item: i.Verdict) -> Any:
        is_early = state.round is not None and state.round.step is Step.EVALUATING
        return real(believing(state, step=Step.JUDGING) if is_early else state, terms, item)

    patches.rule(i.Verdict, judge)
    patches.move(ROUND, (Step.EVALUATING, f.Judged), Step.RELEASING)


def _ignore_gate(patches: Patches) -> None:
    patches.rule(i.Verdict, lambda real, *args: real(*args)[:1])


def _publish_unreleased(patches: Patches) -> None:
    def judge(real: Wrapper, state: Federation, terms: Terms, item: i.Verdict) -> Any:
        facts: Facts = real(state, terms, item)
        if not facts or item.outcome is not f.Outcome.ACCEPTED:
            return facts
        released = i.Released(item.round, item.model, item.now_ms)
        changed = believing(state, step=Step.RELEASING, judged=facts[0])
        return (*facts, *verdict.release(changed, terms, released))

    patches.rule(i.Verdict, judge)


def _repeat_version(patches: Patches) -> None:
    def release(real: Wrapper, state: Federation, terms: Terms, item: i.Released) -> Any:
        facts: Facts = real(state, terms, item)
        return tuple(
            replace(fact, version=state.current) if isinstance(fact, f.ModelPublished) else fact
            for fact in facts
        )

    patches.rule(i.Released, release)


def _forget_judging(patches: Patches) -> None:
    patches.move(owing._OWED, Step.JUDGING, nothing)


def _never_finish(patches: Patches) -> None:
    patches.attribute(ending, "finish", nothing)
    patches.attribute(verdict, "finish", nothing)


# ---- what is told and written -------------------------------------------------------


def _promise_counting(patches: Patches) -> None:
    def status(real: Wrapper, state: Federation, asked: Round, seat: Seat) -> Any:
        return answers.Status.COUNTED if seat in asked.members else real(state, asked, seat)

    patches.attribute(answers, "_status", status)


def _lose_norms(patches: Patches) -> None:
    def read(record: bytes, at: int) -> tuple[Any, int]:
        fact, end = codec._make_reader(f.UpdateAccepted)(record, at)
        codec._READERS[f.UpdateAccepted] = read
        return replace(fact, norm=None), end

    patches.move(codec._READERS, f.UpdateAccepted, read)


BUGS = (
    Bug("an excluded update stays in the sum", SHORT_SCREENED, _keep_excluded),
    Bug("the screen is skipped", SHORT_SCREENED, _skip_screen),
    Bug("a sum is taken before the screen", SHORT_SCREENED, _sum_unscreened),
    Bug("the quorum is ignored after the screen", SHORT_SCREENED, _screen_below_quorum),
    Bug("a screen of former members is taken", SHORT_SCREENED, _take_stale_screen),
    Bug("a screen excludes whom it likes", SHORT_SCREENED, _exclude_without_reason),
    Bug("an update is excluded twice", SHORT_SCREENED, _exclude_twice),
    Bug("the screen counts exclusions and makes none", SHORT_SCREENED, _forget_exclusions),
    Bug("the excluded are members again after the sum", SHORT_SCREENED, _readmit_excluded),
    Bug("a departed member stays in the screen", SHORT_SCREENED, _screen_departed),
    Bug("nobody owes the screen", SHORT_SCREENED, _forget_screen),
    Bug("a departed member stays in the sum", SHORT, _keep_departed),
    Bug("a sum over former members is taken", SHORT, _take_stale_sum),
    Bug("a second sum overwrites the first", SHORT, _take_second_sum),
    Bug("a site that is no member evaluates", SHORT, _let_anybody_evaluate),
    Bug("an evaluation of another model is taken", SHORT, _evaluate_other_model),
    Bug("a cancelled round takes evaluations", SHORT, _evaluate_cancelled),
    Bug("the evaluation closes at its deadline (>= for >)", SHORT, _close_evaluation_early),
    Bug("evidence is lost after the evaluation", SHORT, _change_evidence),
    Bug("a verdict on another model is taken", SHORT, _judge_other_model),
    Bug("a verdict comes before the evaluation is closed", SHORT, _judge_early),
    Bug("a kept candidate is published", SHORT, _ignore_gate),
    Bug("a model is published before it is released", SHORT, _publish_unreleased),
    Bug("the version is not increased", SHORT, _repeat_version),
    Bug("nobody owes the verdict", SHORT, _forget_judging),
    Bug("the federation never finishes", ROUNDS, _never_finish),
    Bug("a receipt promises too early", SHORT, _promise_counting),
    Bug("the codec loses norms", SHORT, _lose_norms),
)
