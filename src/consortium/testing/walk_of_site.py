"""A walk of one site's machine through a secret sum, by every order of messages.

The coordinator may lie: it shows two sessions, two lists of sharers, two splits, two rounds, or
asks for the update without masks. The site may be held, lose its approval, break, hear late
replies, and be started anew from its log at any point. Rules are about what leaves the site, over
the whole way: whoever hears two stories of one round can lay bare what a site sent.

A log that was cut (an old backup) is a state that the walk has been in, so all rules hold from
there on; what had left before is unknown to the site then, and no machine can mend that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core.codec import decode, encode, site_kinds
from consortium.core.facts import Failure
from consortium.core.ids import Seat
from consortium.core.tables import Stage
from consortium.errors import Refusal
from consortium.testing.alphabet import digest
from consortium.testing.walk import Exploration, Violation

NOW_MS, BY_MS = 1_000, 2_000
TASK, PLAN, BASE = digest("task"), digest("plan"), digest("base")
# In the second round the coordinator does not lie about lists: all that is new there is the round.
STORIES = {1: ("one", "other"), 2: ("one",)}
_SEAT = Seat(1)


@dataclass(frozen=True, slots=True)
class Left:
    """Something that left the site."""

    kind: str  # of work
    round: int
    by: object = None  # the session, the sharers or the split that it follows from
    what: object = None  # the note or the update, once there is one


Past = frozenset[Left]


# ---- what may arrive ----------------------------------------------------------------


def duties() -> Iterator[d.SiteDuty]:
    """All that a coordinator may ask for."""
    for number, stories in STORIES.items():
        yield d.JoinSum(number, _SEAT, BASE, None, PLAN, TASK, BY_MS)
        yield d.Train(number, _SEAT, BASE, None, PLAN, TASK, BY_MS, False)
        for story in stories:
            yield d.Share(number, _SEAT, digest(f"session {story}"), BY_MS)
            sharing = digest(f"sharers {story}")
            yield d.Train(number, _SEAT, BASE, None, PLAN, TASK, BY_MS, False, sharing)
            yield d.Agree(number, _SEAT, digest(f"split {story}"), BY_MS)
            yield d.Unmask(number, _SEAT, digest(f"split {story}"), BY_MS)


def arrivals() -> tuple[p.SiteInput, ...]:
    """Everything that may happen to the site, at any time."""
    found: list[p.SiteInput] = [p.Asked(duty, NOW_MS) for duty in duties()]
    work: list[p.SiteWork] = []
    for number, stories in STORIES.items():
        found += [p.Settled(number, False, NOW_MS), p.Broke(number, Failure.RESOURCES, NOW_MS)]
        work += [p.SendKeys(number), p.TellFailure(number, Failure.POLICY)]
        for story in stories:
            update = digest(f"update {story} of {number}")
            found.append(p.Trained(number, update, None, 8, NOW_MS))
            found.append(p.Spool(number, digest(f"note {story}"), 8, NOW_MS))
            work.append(p.SendShares(number, digest(f"session {story}")))
            work.append(p.SendUpdate(number, update))
            work.append(p.SendConsent(number, digest(f"split {story}")))
            work.append(p.SendAnswer(number, digest(f"split {story}")))
    for one in work:
        found += [p.Heard(one, NOW_MS), p.TurnedAway(one, NOW_MS)]
    found += [p.HoldSite(NOW_MS), p.ResumeSite(NOW_MS)]
    found += [p.Withdraw(TASK, PLAN, NOW_MS), p.Approve(TASK, PLAN, NOW_MS)]
    return tuple(found)


def is_first_named(state: p.Participant, item: p.SiteInput) -> bool:
    """Names are names: whichever story comes first is called `one`, and `other` comes after it."""
    match item:
        case p.Asked(duty=d.Share() as duty):
            return duty.session == digest("session one") or state.session is not None
        case p.Asked(duty=d.Train() as duty):
            return duty.sharing != digest("sharers other") or state.sharing is not None
        case p.Asked(duty=d.Agree() | d.Unmask() as duty):
            return duty.split == digest("split one") or state.split is not None
        case p.Trained():
            return item.update != digest("update other of 1") or state.update is not None
        case p.Spool():
            return item.note == digest("note one") or state.note is not None
        case _:
            return True


def leaving(state: p.Participant) -> Left | None:
    """What leaves the site in this state: its work may be done at once."""
    match p.owed(state):
        case p.SendKeys() as work:
            return Left("keys", work.round, None, state.note)
        case p.SendShares() as work:
            return Left("shares", work.round, work.session, state.note)
        case p.SendUpdate() as work:
            return Left("update", work.round, state.sharing, work.update)
        case p.SendConsent() as work:
            return Left("consent", work.round, work.split, state.note)
        case p.SendAnswer() as work:
            return Left("answer", work.round, work.split, state.note)
        case _:
            return None


# ---- rules --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passage:
    """One edge: what arrived, what it brought, and all that ever left."""

    before: p.Participant
    item: p.SiteInput
    facts: p.SiteFacts
    after: p.Participant
    left: Past

    def of(self, kind: str) -> dict[int, set[Left]]:
        """What left of one kind, by round."""
        found: dict[int, set[Left]] = {}
        for one in self.left:
            if one.kind == kind:
                found.setdefault(one.round, set()).add(one)
        return found


def _by(passage: Passage, kind: str) -> list[set[object]]:
    return [{one.by for one in found} for found in passage.of(kind).values()]


def seeds_are_shared_in_one_session_a_round(passage: Passage) -> bool:
    """Shares of a round's seeds leave for the sites of one session."""
    return all(len(sessions) == 1 for sessions in _by(passage, "shares"))


def one_split_a_round_is_signed(passage: Passage) -> bool:
    """Whoever signed two splits would let a coordinator get answers by both."""
    return all(len(splits) == 1 for splits in _by(passage, "consent"))


def answers_are_by_the_split_that_was_signed(passage: Passage) -> bool:
    """Signature and answer of a round are by the same split; and an answer leaves only once the
    coordinator has asked for it, with the signatures of others."""
    signed, answered = passage.of("consent"), passage.of("answer")
    for number, found in answered.items():
        splits = {one.by for one in (*found, *signed.get(number, ()))}
        if len(splits) > 1:
            return False
    now, was = leaving(passage.after), leaving(passage.before)
    is_first = isinstance(now, Left) and now.kind == "answer" and passage.facts
    if not is_first or (was is not None and was.kind == "answer"):
        return True
    is_asked = isinstance(passage.item, p.Asked) and isinstance(passage.item.duty, d.Unmask)
    return is_asked or isinstance(passage.item, p.ResumeSite)


def others_are_answered_for_by_one_split_a_round(passage: Passage) -> bool:
    """Answers of a round are by one split: two of them may give both seeds of a site."""
    return all(len(splits) == 1 for splits in _by(passage, "answer"))


def a_round_has_one_masked_update(passage: Passage) -> bool:
    """One vector leaves under a round's masks, by one list of sharers: two tell their
    difference."""
    return all(len(found) == 1 for found in passage.of("update").values())


def a_step_has_one_note(passage: Passage) -> bool:
    """Once it is written down what leaves in a step, nothing else leaves in it."""
    for kind in ("keys", "shares", "consent", "answer"):
        for found in passage.of(kind).values():
            if len({one.what for one in found if one.what is not None}) > 1:
                return False
    return True


def what_is_secret_is_never_sent_plainly(passage: Passage) -> bool:
    """In a round that began with keys, no update leaves but under masks."""
    keyed = passage.of("keys").keys()
    plain = {one.round for one in passage.left if one.kind == "update" and one.by is None}
    return not plain & keyed


def steps_follow_each_other(passage: Passage) -> bool:
    """Shares leave after keys, masked updates after shares were agreed on, and answers after
    the site's own update."""
    after = passage.after
    match leaving(after):
        case Left("shares"):
            return after.session is not None
        case Left("update"):
            return after.sharing is None or after.session is not None
        case Left("consent" | "answer"):
            return after.sharing is not None and after.update is not None
        case _:
            return True


def rounds_go_forwards(passage: Passage) -> bool:
    """A site that has gone on to a newer round never comes back; nothing of an old one leaves."""
    now = leaving(passage.after)
    is_forward = passage.after.round >= passage.before.round
    return is_forward and (now is None or now.round == passage.after.round)


def a_new_round_begins_with_nothing(passage: Passage) -> bool:
    """Session, sharers, split, note and update of a round are its own."""
    before, after = passage.before, passage.after
    if before.round == after.round:
        return True
    pins = after.session, after.sharing, after.split, after.note, after.update
    return not any(pins)


def nothing_leaves_against_the_sites_will(passage: Passage) -> bool:
    """On hold nothing leaves but the code of a failure; nothing is begun without approval."""
    after = passage.after
    if after.is_held and leaving(after) is not None:
        return False
    is_begun = passage.facts and type(passage.facts[0]).__name__.endswith(("Pinned", "Joined"))
    return not is_begun or (TASK, PLAN) in after.approved


def pins_stay(passage: Passage) -> bool:
    """What a site has agreed to in a round stays until the next round."""
    before, after = passage.before, passage.after
    if before.round != after.round:
        return True
    names = ("session", "sharing", "split", "update")
    return all(getattr(before, x) in (None, getattr(after, x)) for x in names)


SITE_RULES: tuple[Callable[[Passage], bool], ...] = (
    seeds_are_shared_in_one_session_a_round,
    one_split_a_round_is_signed,
    answers_are_by_the_split_that_was_signed,
    others_are_answered_for_by_one_split_a_round,
    a_round_has_one_masked_update,
    a_step_has_one_note,
    what_is_secret_is_never_sent_plainly,
    steps_follow_each_other,
    rounds_go_forwards,
    a_new_round_begins_with_nothing,
    nothing_leaves_against_the_sites_will,
    pins_stay,
)


def an_honest_coordinator_is_served(state: p.Participant, item: p.SiteInput) -> bool:
    """What comes next in an honest round is never refused or passed over."""
    if not isinstance(item, p.Asked) or state.is_held or (TASK, PLAN) not in state.approved:
        return True
    duty = item.duty
    if isinstance(duty, d.JoinSum):
        return duty.round <= state.round or state.unsettled > 0
    if duty.round != state.round:
        return True
    match duty:
        case d.Share():
            return state.session is not None or state.stage not in (Stage.KEYING, Stage.KEYED)
        case d.Train() if duty.sharing is not None:
            return state.sharing is not None or state.stage not in (Stage.SHARING, Stage.SHARED)
        case d.Agree() | d.Unmask():
            is_sent = state.sharing is not None and state.stage in (Stage.SENDING, Stage.SENT)
            is_agreed = state.stage in (Stage.AGREEING, Stage.AGREED)
            if isinstance(duty, d.Unmask) and is_agreed:
                return duty.split != state.split
            return state.split is not None or not is_sent
        case _:
            return True


# ---- the walk -----------------------------------------------------------------------


class _BrokenError(Exception):
    def __init__(self, rule: str, meaning: str) -> None:
        super().__init__(rule)
        self.rule, self.meaning = rule, meaning


@dataclass(frozen=True, slots=True)
class _Node:
    parent: int
    item: p.SiteInput | None
    facts: p.SiteFacts


def _frozen(state: p.Participant) -> object:
    values = (getattr(state, field.name) for field in fields(state))
    return tuple(frozenset(value) if isinstance(value, set) else value for value in values)


def _cloned(state: p.Participant) -> p.Participant:
    other = copy(state)
    other.approved = state.approved.copy()
    return other


class _Walk:
    def __init__(self) -> None:
        self._arrivals = arrivals()
        self._nodes: list[_Node] = []
        self._seen: set[object] = set()
        self._todo: deque[tuple[int, p.Participant, Past]] = deque()
        self._edges = self._refusals = self._changes = 0
        self._here, self._item = 0, None
        self._facts: p.SiteFacts = ()

    def run(self) -> Exploration:
        start, violation = time.perf_counter(), None
        state = p.Participant()
        approved = p.decide(state, p.Approve(TASK, PLAN, NOW_MS))
        for fact in approved:
            p.evolve(state, fact)
        try:
            self._enter(state, frozenset(), _Node(-1, None, approved))
            while self._todo:
                self._expand(*self._todo.popleft())
        except _BrokenError as broken:
            violation = Violation(broken.rule, broken.meaning, self._trace())
        counts = self._edges, self._refusals, self._changes
        seconds = time.perf_counter() - start
        return Exploration(
            len(self._nodes), len(self._arrivals), *counts, (), 0, seconds, violation
        )

    def _expand(self, here: int, state: p.Participant, left: Past) -> None:
        self._here = here
        before = _frozen(state)
        for item in self._arrivals:
            if not is_first_named(state, item):
                continue
            self._item, self._facts = item, ()  # type: ignore[assignment]  # None at the root only
            self._arrive(state, left, item)
            if _frozen(state) != before:
                raise _BrokenError("decide_changes_nothing", "A decision leaves the state alone.")

    def _arrive(self, state: p.Participant, left: Past, item: p.SiteInput) -> None:
        self._edges += 1
        try:
            facts = p.decide(state, item)
        except Refusal:
            self._refusals += 1
            facts = ()
        except Exception as error:
            raise _BrokenError("decide_refuses_or_answers", repr(error)) from error
        if not facts:
            _ask(an_honest_coordinator_is_served, state, item)
            return
        self._changes += 1
        self._facts = facts
        after = _cloned(state)
        for fact in facts:
            p.evolve(after, fact)
        now = leaving(after)
        # That nothing more leaves of an older round is a rule: what had left then is done with.
        ever = frozenset(one for one in {*left, now} if one and one.round >= after.round)
        passage = Passage(state, item, facts, after, ever)
        for rule in SITE_RULES:
            _ask(rule, passage)
        self._enter(after, ever, _Node(self._here, item, facts))

    def _enter(self, state: p.Participant, left: Past, node: _Node) -> None:
        key = _frozen(state), left
        if key in self._seen:
            return
        self._seen.add(key)
        self._nodes.append(node)
        here = len(self._nodes) - 1
        if _frozen(self._restarted(here)) != _frozen(state):
            raise _BrokenError("a_restart_changes_nothing", "The log folds into the same state.")
        self._todo.append((here, state, left))

    def _restarted(self, here: int) -> p.Participant:
        """The site after a crash: all that it knows is in its log."""
        parts: list[p.SiteFacts] = []
        while here >= 0:
            parts.append(self._nodes[here].facts)
            here = self._nodes[here].parent
        state = p.Participant()
        for fact in (fact for part in reversed(parts) for fact in part):
            p.evolve(state, decode(encode(fact), site_kinds))
        return state

    def _trace(self) -> tuple[tuple[object, tuple[object, ...]], ...]:
        passed: list[tuple[object, tuple[object, ...]]] = []
        here = self._here
        while here > 0:
            node = self._nodes[here]
            passed.append((node.item, node.facts))
            here = node.parent
        return (*reversed(passed), (self._item, self._facts))


def _ask(rule: Callable[..., bool], *what: Any) -> None:
    if not rule(*what):
        raise _BrokenError(rule.__name__, rule.__doc__ or "")


def walk_of_site() -> Exploration:
    """Walk until nothing is new or a rule is broken."""
    return _Walk().run()
