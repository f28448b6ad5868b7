"""The sentences of scenarios: each is one small function with the pattern it answers to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.answers import receipt
from consortium.core.codec import decode
from consortium.core.federation import owed, owed_by, replay
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.terms import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    Close,
    Metric,
    Selection,
    Terms,
)
from consortium.gate import judge
from consortium.testing.story import (
    ACTS,
    LOOKS,
    TIME,
    Story,
    StoryError,
    act,
    clock_text,
    list_text,
    look,
    read_list,
    read_time,
)

__all__ = ["ACTS", "LOOKS"]

_SITE = r"[A-Z]\w*"
_SITES = rf"{_SITE}(?:, {_SITE})*(?: and {_SITE})?"
_NUMBER = r"\d+(?:\.\d+)?"
_UNITS = {"second": SECOND_MS, "minute": MINUTE_MS, "hour": HOUR_MS, "day": DAY_MS}
_RECORDS = 100  # what a site evaluates on
_Code = TypeVar("_Code", f.Fault, f.Failure)


def _named(kind: type[_Code], name: str) -> _Code:
    if name not in kind.__members__:
        raise StoryError(f"there is no {kind.__name__} {name}")
    return kind[name]


def _digest(name: str) -> Digest:
    return Digest(sha256(name.encode()).digest())


# ---- Given: a federation and its plan -----------------------------------------------

_DURATION = rf"(\d+) ({'|'.join(_UNITS)})s?"
_PLAN: dict[str, Callable[..., dict[str, object]]] = {
    r"quorum (\d+)": lambda n: {"quorum": int(n), "wait_for": int(n)},
    r"target (\d+)": lambda n: {"target": int(n)},
    r"(\d+) rounds": lambda n: {"rounds": int(n)},
    rf"duration {_DURATION}": lambda n, unit: {"duration_ms": int(n) * _UNITS[unit]},
    rf"a round every {_DURATION}": lambda n, unit: {"every_ms": int(n) * _UNITS[unit]},
    r"closing at the quorum": lambda: {"close": Close.QUORUM},
    r"(fair|random|diverse) selection": lambda name: {"selection": Selection[name.upper()]},
    r"judged by (loss|accuracy)": lambda name: {
        "judged_by": name,
        "metrics": (Metric(name, name == "accuracy"),),
    },
    r"evaluation quorum (\d+)": lambda n: {"evaluation_quorum": int(n)},
    rf"stopping at a loss below ({_NUMBER})": lambda x: {"stop_below": float(x)},
    r"patience (\d+)": lambda n: {"patience": int(n)},
    r"a screen of the updates": lambda: {"is_screened": True},
}


def _terms(text: str) -> Terms:
    terms = Terms(rounds=100, quorum=3, wait_for=3)
    for part in read_list(text):
        for pattern, changes in _PLAN.items():
            if match := re.fullmatch(pattern, part):
                # The table's patterns give each field a value of its type.
                terms = replace(terms, **changes(*match.groups()))  # type: ignore[arg-type]
                break
        else:
            raise StoryError(f"a plan has no {part!r}")
    return terms


@act(rf"a federation of ({_SITES})")
def _found(story: Story, names: str) -> None:
    story.give(i.Found("story", story.now_ms))
    for name in read_list(names):
        _join_in(story, name)


@act(rf"({_SITE}) joins")
def _join_in(story: Story, name: str) -> None:
    story.seats[name] = Seat(story.state.roster.next_seat)
    story.give(i.Admit(SiteId(name), b"", story.now_ms))


@act(r"(?:a plan|the lead adopts a plan) with (.+)")
def _adopt(story: Story, text: str) -> None:
    plan, task, layout = _digest(text), _digest("task"), _digest("layout")
    story.give(i.AdoptPlan(plan, task, layout, _terms(text), story.now_ms))
    if not story.state.versions:
        story.give(i.InstallModel(_digest("model 0"), story.now_ms))


@act(r"the lots are drawn with seed (\d+)")
def _seed(story: Story, number: str) -> None:
    story.lot = int(number)


# ---- When: the lead and the clock ---------------------------------------------------


@act(rf"it is ({TIME})")
def _tick(story: Story, time: str) -> None:
    story.now_ms = read_time(time)
    story.give(i.Tick(story.now_ms))
    _draw(story)


@act(r"a round opens")
def _open(story: Story) -> None:
    story.give(i.OpenRound(story.now_ms))
    _draw(story)


def _draw(story: Story) -> None:
    for duty in owed(story.state):
        if isinstance(duty, d.Draw):
            seed = sha256(b"lot %d" % story.lot).digest()
            story.give(i.Drawn(duty.round, seed, story.now_ms))


@act(r"the lead rolls back to version (\d+)")
def _roll_back(story: Story, version: str) -> None:
    story.give(i.RollBack(int(version), story.now_ms))


@act(r"the lead (holds|resumes|stops) the federation")
def _steer(story: Story, verb: str) -> None:
    items: dict[str, i.Input] = {
        "holds": i.Hold(story.now_ms),
        "resumes": i.Resume(story.now_ms),
        "stops": i.Stop(story.now_ms),
    }
    story.give(items[verb])


@act(r"the lead cancels the round")
def _cancel(story: Story) -> None:
    story.give(i.CancelRound(story.round.number, story.now_ms))


@act(rf"({_SITE}) is revoked")
def _revoke(story: Story, name: str) -> None:
    story.give(i.Dismiss(story.seat(name), f.Departure.REVOKED, story.now_ms))


# ---- When: sites --------------------------------------------------------------------


@act(rf"({_SITES}) (?:is|are) seen")
def _seen(story: Story, names: str) -> None:
    for name in read_list(names):
        story.give(i.Report(story.seat(name), (), story.now_ms))


@act(rf"({_SITE}) submits update (\w+)")
def _submit(story: Story, name: str, update: str) -> None:
    number = story.state.last_number
    story.give(i.Submit(number, story.seat(name), _digest(update), None, story.now_ms))


@act(rf"the update of ({_SITE}) (?:passes its checks|fails the ([A-Z]+) check)")
def _check(story: Story, name: str, fault: str | None, norm: float = 1.0) -> None:
    seat, open_round = story.seat(name), story.round
    verdict = _named(f.Fault, fault) if fault else None
    update = open_round.submitted.get(seat)
    if update is None:
        raise StoryError(f"{name} has submitted nothing")
    story.give(i.Checked(open_round.number, seat, update, verdict, 1.0, norm, story.now_ms))


@act(rf"({_SITES}) sends? (?:an update|updates)(?: of norm ({_NUMBER}))?")
def _send(story: Story, names: str, norm: str | None) -> None:
    """Submitted and found good."""
    for name in read_list(names):
        _submit(story, name, f"{name}_{story.state.last_number}")
        if story.refusal is None:
            _check(story, name, None, float(norm or 1))


@act(rf"({_SITE}) reports the failure ([A-Z_]+)")
def _fail(story: Story, name: str, code: str) -> None:
    number, failure = story.state.last_number, _named(f.Failure, code)
    story.give(i.Fail(number, story.seat(name), failure, None, story.now_ms))


@act(rf"({_SITES}) measures? ({_NUMBER}) for the candidate and ({_NUMBER}) for the base")
def _score(story: Story, names: str, candidate: str, base: str) -> None:
    model = story.round.model
    if model is None:
        raise StoryError("there is no candidate yet")
    sums = (float(candidate) * _RECORDS,), (float(base) * _RECORDS,)
    for name in read_list(names):
        number, seat = story.state.last_number, story.seat(name)
        story.give(i.Score(number, seat, model, _RECORDS, *sums, None, story.now_ms))


# ---- When: the coordinator ----------------------------------------------------------


@act(rf"the screen (?:excludes ({_SITES}) for ([A-Z]+)|excludes nobody)")
def _screen(story: Story, names: str | None = None, fault: str | None = None) -> None:
    found = sorted(story.seat(name) for name in read_list(names)) if names else []
    excluded = tuple((seat, _named(f.Fault, fault or "")) for seat in found)
    count, number = len(story.round.members), story.round.number
    story.give(i.Screened(number, count, excluded, story.now_ms))


@act(r"the updates are summed")
def _sum(story: Story) -> None:
    count, model = len(story.round.members), _digest(f"model {story.round.number}")
    story.give(i.Summed(story.round.number, count, model, None, story.now_ms))


@act(r"the sum turns out not to be finite")
def _not_finite(story: Story) -> None:
    count = len(story.round.members)
    story.give(i.NotSummed(story.round.number, count, f.RoundEnd.NOT_FINITE, story.now_ms))


@act(r"the coordinator does its work")
def _work(story: Story) -> None:
    """Screen, sum, judge and release, as far as nobody else is waited for."""
    while story.state.round is not None and story.state.terms is not None:
        duty = owed(story.state)[0]
        if isinstance(duty, d.Screen):
            _screen(story)
        elif isinstance(duty, d.Aggregate):
            _sum(story)
        elif isinstance(duty, d.Judge):
            outcome = judge(duty).outcome
            story.give(i.Verdict(duty.round, duty.model, outcome, story.now_ms))
        elif isinstance(duty, d.Release):
            story.give(i.Released(duty.round, duty.model, story.now_ms))
        else:
            return


@act(r"the coordinator crashes and comes back")
def _crash(story: Story) -> None:
    before, story.state = story.state, replay([decode(record) for record in story.records])
    story.expect("the state after the crash", before, story.state)


# ---- Then ---------------------------------------------------------------------------


@look(r"it is refused as (\w+)")
def _is_refused(story: Story, kind: str) -> None:
    found, story.refusal = story.refusal, None
    story.expect("the refusal", kind, type(found).__name__ if found else "none")


@look(r"nothing changes")
def _nothing(story: Story) -> None:
    found = ", ".join(type(fact).__name__ for fact in story.news)
    story.expect("the news", "none", found or "none")


@look(rf"({_SITES}) (?:is|are) invited")
def _are_invited(story: Story, names: str) -> None:
    story.expect(
        "the invited", list_text(sorted(read_list(names))), story.names(story.round.invited)
    )


@look(rf"({_SITE}) is asked (to train|to train urgently|to evaluate|for nothing)")
def _is_asked(story: Story, name: str, what: str) -> None:
    duty = owed_by(story.state, story.seat(name))
    found = "for nothing"
    if isinstance(duty, d.Train):
        found = "to train urgently" if duty.is_urgent else "to train"
    elif isinstance(duty, d.Evaluate):
        found = "to evaluate"
    story.expect(f"{name} is asked", what, found)


@look(r"the round is ([A-Z]+)(?: because ([A-Z_]+)| with outcome ([a-z]+))?")
def _is_at(story: Story, phase: str, reason: str | None, outcome: str | None) -> None:
    one = story.round
    story.expect("the round", phase, one.step.phase.value)
    if reason:
        story.expect("the reason", reason, one.reason.name if one.reason else "none")
    if outcome:
        story.expect(
            "the outcome", outcome, one.judged.outcome.name.lower() if one.judged else "none"
        )


@look(r"round (\d+) is open")
def _is_open(story: Story, number: str) -> None:
    found = f"round {story.state.round.number}" if story.state.round else "no round"
    story.expect("what is open", f"round {number}", found)


@look(r"no round is open")
def _none_open(story: Story) -> None:
    found = f"round {story.state.round.number}" if story.state.round else "no round"
    story.expect("what is open", "no round", found)


@look(rf"the deadline is ({TIME})")
def _deadline(story: Story, time: str) -> None:
    story.expect("the deadline", clock_text(read_time(time)), clock_text(story.round.deadline_ms))


@look(r"the coordinator owes (\w+)")
def _owes(story: Story, kind: str) -> None:
    duties = dict.fromkeys(type(duty).__name__ for duty in owed(story.state))
    story.expect("what is owed", kind, ", ".join(duties) or "nothing")


@look(rf"the members are ({_SITES})")
def _members(story: Story, names: str) -> None:
    story.expect(
        "the members", list_text(sorted(read_list(names))), story.names(story.round.members)
    )


@look(rf"the receipt of ({_SITE}) says ([a-z ]+?)(?: because ([A-Z_]+))?")
def _receipt(story: Story, name: str, status: str, why: str | None) -> None:
    found = receipt(story.state, story.round.number, story.seat(name))
    story.expect("the receipt", status, found.status.value if found else "nothing")
    if why and found:
        story.expect("the reason", why, found.why.name if found.why else "none")


@look(rf"the evidence is ({_NUMBER}) for the candidate and ({_NUMBER}) for the base")
def _evidence(story: Story, candidate: str, base: str) -> None:
    judged = story.round.judged
    found = (judged.candidate, judged.base) if judged else "none"
    story.expect("the evidence", ((float(candidate),), (float(base),)), found)


@look(r"the model is version (\d+)(?: of (\d+))?")
def _version(story: Story, number: str, count: str | None) -> None:
    story.expect("the version", int(number), story.state.current)
    if count:
        story.expect("the newest version", int(count), max(story.state.versions))


@look(rf"the next round is due at ({TIME})")
def _due(story: Story, time: str) -> None:
    story.expect("the next round", clock_text(read_time(time)), clock_text(story.state.next_due_ms))


@look(r"the federation has finished because ([A-Z_]+)")
def _finished(story: Story, reason: str) -> None:
    finished = story.state.finished
    story.expect("the finish", reason, finished.name if finished else "none")
