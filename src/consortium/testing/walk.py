"""The walk: breadth-first over every state that a federation can reach, by every input.

Rules are asked on every edge, before a state is recognised as known: many a mistake leads
to a state that is fine in itself. The walk ends when nothing is new, or at the first rule
that is broken; as it is breadth-first, no trace to that rule is shorter.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import decode, encode
from consortium.core.federation import decide, evolve, replay
from consortium.core.legal import is_legal
from consortium.core.state import Federation
from consortium.core.tables import Step
from consortium.core.terms import Terms
from consortium.errors import Refusal, RestoredBackupError
from consortium.testing.alphabet import Alphabet, Moment, founding, inputs
from consortium.testing.causes import FACT_RULES
from consortium.testing.fingerprint import fingerprint
from consortium.testing.liveness import MAX_STEPS, next_facts
from consortium.testing.replies import HEARD_RULES, REPLY_RULES
from consortium.testing.rules import STATE_RULES
from consortium.testing.rules_of_masking import (
    MASKING_CHANGE_RULES,
    MASKING_FACT_RULES,
    MASKING_REPLY_RULES,
    MASKING_STATE_RULES,
    NOTHING_ASKED,
    Asked,
    asked_since,
    nobody_is_laid_bare,
)
from consortium.testing.rules_of_paying import (
    PAYING_CHANGE_RULES,
    PAYING_FACT_RULES,
    PAYING_REPLY_RULES,
    PAYING_STATE_RULES,
)
from consortium.testing.rules_of_scoring import (
    SCORING_CHANGE_RULES,
    SCORING_FACT_RULES,
    SCORING_REPLY_RULES,
)
from consortium.testing.transitions import CHANGE_RULES, Change

Facts = tuple[f.Fact, ...]
Path = tuple[tuple[object, tuple[object, ...]], ...]  # inputs, and the facts that they brought


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that does not hold, and a shortest way to where it does not."""

    rule: str
    meaning: str
    trace: Path


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a walk has seen. `edges` are pairs of a state and an input; those that brought
    facts are `changes`, the others `refusals` or silence."""

    states: int
    inputs: int
    edges: int
    refusals: int
    changes: int
    steps: tuple[str, ...]
    longest_end: int  # steps that a driver needs at most from any state to a round's end
    seconds: float
    violation: Violation | None


def explore(terms: Terms, alphabet: Alphabet | None = None) -> Exploration:
    """Walk until nothing is new or a rule is broken; the terms must lead to finitely many
    states, so keep `rounds`, `max_extensions` and the number of sites small.

    The terms are those of a federation with `alphabet.sites` sites that all report
    `ready = true`. Simulated cohorts are not explored.
    """
    return _Walk(terms, alphabet or Alphabet()).run()


# ---- the walk -----------------------------------------------------------------------


# An account that has forgotten is no reason that a caller could mend: see `budget.granted`.
_REFUSALS = (Refusal, RestoredBackupError)
_PURE = "A decision leaves the state as it was."


def _joined(*tables: dict[type[Any], tuple[Any, ...]]) -> dict[type[Any], tuple[Any, ...]]:
    """The rules of all tables, by kind."""
    kinds = {kind for table in tables for kind in table}
    return {kind: tuple(rule for t in tables for rule in t.get(kind, ())) for kind in kinds}


_REPLY_RULES = _joined(REPLY_RULES, PAYING_REPLY_RULES, MASKING_REPLY_RULES, SCORING_REPLY_RULES)
_FACT_RULES = _joined(MASKING_FACT_RULES, FACT_RULES, PAYING_FACT_RULES, SCORING_FACT_RULES)
_CHANGE_RULES = (*MASKING_CHANGE_RULES, *CHANGE_RULES, *PAYING_CHANGE_RULES, *SCORING_CHANGE_RULES)
_STATE_RULES = (*STATE_RULES, *PAYING_STATE_RULES, *MASKING_STATE_RULES)


class _BrokenError(Exception):
    """A rule does not hold on the edge that is being looked at."""

    def __init__(self, rule: str, meaning: str) -> None:
        super().__init__(rule)
        self.rule, self.meaning = rule, meaning


def _break(rule: Callable[..., bool]) -> NoReturn:
    raise _BrokenError(rule.__name__, rule.__doc__ or "")


@dataclass(frozen=True, slots=True)
class _Node:
    parent: int
    item: i.Input | None
    facts: Facts
    asked: Asked = NOTHING_ASKED  # of sites, in the open round, on the way here


class _Walk:
    def __init__(self, terms: Terms, alphabet: Alphabet) -> None:
        self._terms, self._alphabet = terms, alphabet
        self._nodes: list[_Node] = []
        self._decoded: list[Facts] = []  # of each node, as they come back from their encoding
        self._seen: set[object] = set()
        self._to_end: dict[object, int] = {}  # by fingerprint
        self._todo: deque[tuple[int, Federation, object]] = deque()
        self._inputs: dict[Moment, tuple[i.Input, ...]] = {}
        self._steps: set[Step] = set()
        self._edges = self._refusals = self._changes = 0
        self._here = 0
        self._item: i.Input | None = None
        self._facts: Facts = ()

    def run(self) -> Exploration:
        start, violation = time.perf_counter(), None
        try:
            facts = tuple(founding(self._terms, self._alphabet))
            root = replay(list(facts))
            self._enter(root, fingerprint(root), _Node(-1, None, facts))
            while self._todo:
                self._expand(*self._todo.popleft())
        except _BrokenError as broken:
            violation = Violation(broken.rule, broken.meaning, self._trace())
        except Exception as error:  # a rule or a duty met a state that it cannot read
            violation = Violation("every_state_can_be_read", repr(error), self._trace())
        return Exploration(
            len(self._nodes),
            len({item for items in self._inputs.values() for item in items}),
            self._edges,
            self._refusals,
            self._changes,
            tuple(step.name for step in Step if step in self._steps),
            max(self._to_end.values(), default=0),
            time.perf_counter() - start,
            violation,
        )

    def _expand(self, here: int, state: Federation, before: object) -> None:
        moment = Moment.of(state)
        items = self._inputs.get(moment)
        if items is None:
            items = self._inputs[moment] = inputs(moment, self._terms, self._alphabet)
        self._here = here
        try:
            for item in items:
                self._item, self._facts = item, ()
                self._arrive(state, item)
        finally:
            if fingerprint(state) != before:
                self._blame(items, before)

    def _arrive(self, state: Federation, item: i.Input) -> None:
        self._edges += 1
        try:
            facts = decide(state, item)
        except _REFUSALS as refusal:
            self._refusals += 1
            self._check_reply(state, item, refusal)
            return
        except Exception as error:
            raise _BrokenError("decide_refuses_or_answers", repr(error)) from error
        if not facts:
            self._check_reply(state, item, None)
            return
        self._changes += 1
        self._facts = facts
        after, illegal = _recorded(state, facts)
        found = fingerprint(after)
        asked = self._asked(self._nodes[self._here].asked, after)
        self._check_change(Change(state, item, facts, after))
        if illegal is not None:
            raise _BrokenError("facts_are_legal", f"A verifier would refuse {illegal}.")
        self._enter(after, found, _Node(self._here, item, facts, asked))

    def _asked(self, before: Asked, state: Federation) -> Asked:
        """All that was asked of sites on the way to this state; never too much."""
        asked = asked_since(before, state) if self._terms.is_masked else NOTHING_ASKED
        return asked if nobody_is_laid_bare(asked) else _break(nobody_is_laid_bare)

    def _check_reply(self, state: Federation, item: i.Input, reply: Exception | None) -> None:
        for heard_rule in HEARD_RULES.get(type(item), ()):
            if not heard_rule(state, item):
                _break(heard_rule)
        for reply_rule in _REPLY_RULES.get(type(item), ()):
            if not reply_rule(state, item, reply):
                _break(reply_rule)

    def _check_change(self, change: Change) -> None:
        for fact in change.facts:
            for fact_rule in _FACT_RULES.get(type(fact), ()):
                if not fact_rule(change, fact):
                    _break(fact_rule)
        for change_rule in _CHANGE_RULES:
            if not change_rule(change):
                _break(change_rule)
        _check_state(change.after)
        _check_again(change)

    def _enter(self, state: Federation, found: object, node: _Node) -> None:
        """Queue a state that is new; check that its log and its future are sound. A state that
        was reached after other things were asked of sites is another one."""
        if (found, node.asked) in self._seen:
            return
        self._seen.add((found, node.asked))
        self._nodes.append(node)
        self._decoded.append(_through_codec(node.facts))
        here = len(self._nodes) - 1
        self._steps.update(known.step for known in (state.round, state.ended) if known)
        if replay(self._log(here)) != state:
            if fingerprint(state) != found:
                raise _BrokenError("decide_changes_nothing", _PURE)
            raise _BrokenError("replay_gives_the_same_state", "The log folds into the state.")
        self._check_end(state, found)
        self._todo.append((here, state, found))

    def _check_end(self, state: Federation, found: object) -> None:
        """Every round ends if what is owed is done and time passes, whoever is silent."""
        path: list[object] = []
        while state.round is not None and found not in self._to_end:
            path.append(found)
            facts = next_facts(state)
            if not facts or len(path) > MAX_STEPS:
                raise _BrokenError("every_round_ends", self._check_end.__doc__ or "")
            state, _ = _recorded(state, facts)
            found = fingerprint(state)
        steps = self._to_end.get(found, 0)
        for passed in reversed(path):
            steps += 1
            self._to_end[passed] = steps

    def _blame(self, items: tuple[i.Input, ...], before: object) -> NoReturn:
        """`decide` changed a state: find the first input that makes it do so."""
        for item in items:
            self._item, self._facts = item, ()
            state = replay(self._log(self._here))
            with suppress(*_REFUSALS):
                decide(state, item)
            if fingerprint(state) != before:
                break
        raise _BrokenError("decide_changes_nothing", _PURE)

    def _log(self, here: int) -> list[f.Fact]:
        parts: list[Facts] = []
        while here >= 0:
            parts.append(self._decoded[here])
            here = self._nodes[here].parent
        return [fact for part in reversed(parts) for fact in part]

    def _trace(self) -> Path:
        passed: list[tuple[i.Input, Facts]] = []
        here = self._here
        while here > 0:
            node = self._nodes[here]
            assert node.item is not None
            passed.append((node.item, node.facts))
            here = node.parent
        last = () if self._item is None else ((self._item, self._facts),)
        return (*reversed(passed), *last)


def _recorded(state: Federation, facts: Facts) -> tuple[Federation, f.Fact | None]:
    """The state once `facts` are recorded, and the first of them that is not legal."""
    after, illegal = state.clone(), None
    for fact in facts:
        if illegal is None and not is_legal(after, fact):
            illegal = fact
        try:
            evolve(after, fact)
        except Exception as error:
            raise _BrokenError("evolve_never_fails", f"{fact}: {error!r}") from error
    return after, illegal


def _check_state(state: Federation) -> None:
    for rule in _STATE_RULES:
        if not rule(state):
            _break(rule)


def _check_again(change: Change) -> None:
    """The same input again, now that its facts are recorded, changes nothing."""
    try:
        facts = decide(change.after, change.item)
    except _REFUSALS:
        return
    if facts:
        raise _BrokenError("the_same_again_changes_nothing", _check_again.__doc__ or "")


def _through_codec(facts: Facts) -> Facts:
    return tuple([decode(encode(fact)) for fact in facts])
