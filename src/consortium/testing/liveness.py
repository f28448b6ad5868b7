"""A driver that does what is owed and nothing else: no site ever answers, no check reports.

From any state it must bring the open round to its end: whoever is silent, time and the
coordinator's own work suffice.
"""

from __future__ import annotations

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.federation import decide, owed
from consortium.core.state import Federation
from consortium.testing.alphabet import MODEL, SEEDS, START_MS

# Draw, select, deadline, grace, extended deadline, its grace, screen, sum, evaluation,
# verdict, release: eleven, and nearly as many again for terms with more extensions.
MAX_STEPS = 20


def next_facts(state: Federation) -> tuple[f.Fact, ...]:
    """The facts that the first effective duty brings about; none if nothing is owed."""
    for duty in owed(state):
        item = _done(duty, state)
        facts = decide(state, item) if item is not None else ()
        if facts:
            return facts
    return ()


def _done(duty: d.Duty, state: Federation) -> i.Input | None:
    """The report of a duty that was done at once; a check never reports."""
    match duty:
        case d.WakeAt():
            return i.Tick(duty.at_ms)
        case d.Draw():
            return i.Drawn(duty.round, SEEDS[0], START_MS + 1)
        case d.Screen():
            return i.Screened(duty.round, duty.count, (), START_MS)
        case d.Aggregate():
            scores = _no_scores(state)
            return i.Summed(duty.round, duty.count, MODEL, None, START_MS, 0, scores)
        case d.Judge():
            return i.Verdict(duty.round, duty.model, f.Outcome.ACCEPTED, START_MS)
        case d.Release():
            return i.Released(duty.round, duty.model, START_MS)
        case d.Reserve():
            return i.Granted(duty.round, START_MS + duty.round, START_MS)
        case d.Settle():
            return i.AccountTold(duty.round, START_MS)
        case d.Check():
            return None


def _no_scores(state: Federation) -> tuple[float, ...]:
    """Of a sum whose members had no test records."""
    terms = state.terms
    assert terms is not None, "a sum, and no plan was adopted"
    return (0.0,) * len(terms.metrics) if terms.has_scored_sums else ()
