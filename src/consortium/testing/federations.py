"""The small federations that the explorer walks through, each with its own emphasis.

All have deadlines of a few milliseconds, one extension and a condition that sites must
report `ready`. Together they reach every step of a round; alone each stays small enough
to be walked through in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from consortium.core.account_facts import Cost
from consortium.core.facts import Outcome
from consortium.core.ids import Seat
from consortium.core.terms import Budget, Close, Comparison, Condition, Masking, Metric, Terms
from consortium.testing.alphabet import READY, SEEDS, Alphabet

_ONE, _TWO, _THREE, _FOUR = (Seat(number) for number in (1, 2, 3, 4))

# Four sites, three of them invited, so that one is left as a backup; two are a quorum.
EVALUATED = Terms(
    rounds=1,
    quorum=2,
    wait_for=3,
    target=3,
    conditions=(Condition(READY, Comparison.EQUAL, True),),
    duration_ms=10,
    extension_ms=5,
    max_extensions=1,
    grace_ms=2,
    retry_ms=3,
    every_ms=1_000,  # more than any round takes, so that the next one opens at one time
    norm_factor=10,
    metrics=(Metric("accuracy", higher_is_better=True),),
    judged_by="accuracy",
    evaluation_quorum=2,
    evaluation_ms=4,
)
UNEVALUATED = replace(EVALUATED, metrics=(), judged_by="", evaluation_quorum=0)


@dataclass(frozen=True, slots=True)
class Small:
    """A federation to walk through."""

    name: str
    terms: Terms
    alphabet: Alphabet


TRAINING = Small(
    "training",
    UNEVALUATED,
    Alphabet(
        swapping=(_ONE,),
        loud=(_ONE,),
        faulty=(_TWO,),
        leaving=(_TWO,),
        failing=(_THREE,),
        seeds=SEEDS[:1],
        outcomes=(Outcome.ACCEPTED, Outcome.UNJUDGED),
        is_cancelled=False,
    ),
)
# One site that is not ready keeps everybody waiting.
SELECTION = Small(
    "selection",
    replace(UNEVALUATED, wait_for=4),
    Alphabet(failing=(_THREE,), reporting=(_FOUR,), outcomes=(), is_cancelled=False),
)
EVALUATION = Small(
    "evaluation",
    EVALUATED,
    Alphabet(
        leaving=(_TWO,),
        failing=(_THREE,),
        doubting=(_ONE,),
        seeds=SEEDS[:1],
        outcomes=(Outcome.ACCEPTED, Outcome.KEPT),
    ),
)
QUORUM = Small(
    "quorum",
    replace(UNEVALUATED, close=Close.QUORUM),
    Alphabet(
        loud=(_ONE,),
        failing=(_TWO,),
        leaving=(_THREE,),
        seeds=SEEDS[:1],
        outcomes=(Outcome.ACCEPTED,),
        is_cancelled=False,
    ),
)
# All three invited are needed, so that one loud update calls for the backup.
UNANIMOUS = Small(
    "unanimous",
    replace(QUORUM.terms, quorum=3),
    QUORUM.alphabet,
)
# Two of four may stand out and leave a quorum; three, or two and a departure, do not.
SCREENED = Small(
    "screened",
    replace(EVALUATED, is_screened=True, wait_for=4, target=4, max_extensions=0),
    Alphabet(loud=(_ONE,), leaving=(_TWO,), seeds=SEEDS[:1], outcomes=(Outcome.ACCEPTED,)),
)
ROUNDS = Small(
    "two rounds",
    replace(UNEVALUATED, rounds=2, wait_for=2, target=2),
    Alphabet(sites=2, seeds=SEEDS[:1], is_led=True, is_cancelled=False),
)

# Two sites train at a time and one update moves the model: the other passes on.
_BUFFER = replace(
    UNEVALUATED,
    rounds=2,
    quorum=1,
    wait_for=1,
    target=2,
    buffer=1,
    max_staleness=1,
    discount_ppm=500_000,
    max_extensions=0,
    every_ms=0,  # the next round opens while its invitations may still hold
)
BUFFERED = Small(
    "buffered",
    _BUFFER,
    Alphabet(
        sites=2,
        failing=(_TWO,),
        leaving=(_TWO,),
        seeds=SEEDS[:1],
        outcomes=(Outcome.ACCEPTED, Outcome.KEPT),
        is_cancelled=False,
    ),
)
# No update may be older than the model; members evaluate by the number that they know.
FRESH = Small(
    "fresh",
    replace(
        _BUFFER,
        max_staleness=0,
        metrics=EVALUATED.metrics,
        judged_by=EVALUATED.judged_by,
        evaluation_quorum=1,
    ),
    Alphabet(sites=2, seeds=SEEDS[:1], outcomes=(Outcome.ACCEPTED,), is_cancelled=False),
)

# Every round costs something: what its sum tells, or what two sites tell that one must be ready.
_COSTS = (Cost(7.0, 1, 1.0),)
CENTRAL = Budget("heart", "site", _COSTS, is_spent_at_sites=False)
PAID = Small(
    "paid",
    replace(
        UNEVALUATED, rounds=2, quorum=1, wait_for=1, target=1, max_extensions=0, budget=CENTRAL
    ),
    Alphabet(
        sites=1, seeds=SEEDS[:1], outcomes=(Outcome.ACCEPTED,), is_led=True, is_replanned=True
    ),
)
PAID_AT_SITES = Small(
    "paid at sites",
    replace(
        PAID.terms,
        rounds=1,
        wait_for=2,
        target=2,
        budget=replace(CENTRAL, is_spent_at_sites=True),
    ),
    Alphabet(
        sites=2,
        leaving=(_ONE,),
        reporting=(_TWO,),
        seeds=SEEDS[:1],
        outcomes=(Outcome.ACCEPTED,),
        is_led=True,
    ),
)
# One site trains on while the next round, which it was not invited to, is not paid for yet.
PAID_BUFFERED = Small(
    "paid, buffered",
    replace(_BUFFER, budget=PAID_AT_SITES.terms.budget),
    Alphabet(sites=2, seeds=SEEDS[:1], outcomes=(Outcome.ACCEPTED,), is_cancelled=False),
)

# Sums are secret: of four sites three are a quorum, so one may fall out anywhere.
_SECRET = replace(
    UNEVALUATED,
    quorum=3,
    wait_for=3,
    target=4,
    norm_factor=0,
    max_extensions=0,
    grace_ms=1,
    masking=Masking(phase_ms=6),
)
MASKED = Small(
    "masked",
    _SECRET,
    Alphabet(
        leaving=(_TWO,),
        failing=(_THREE,),
        seeds=SEEDS[:1],
        outcomes=(Outcome.ACCEPTED,),
        is_cancelled=False,
    ),
)
# Three of four sites are invited, and all three are needed: a loss would call for the fourth.
SHORT_MASKED = Small(
    "short, masked",
    replace(_SECRET, target=3),
    Alphabet(
        swapping=(_ONE,),
        leaving=(_TWO,),
        failing=(_ONE,),
        seeds=SEEDS[:1],
        outcomes=(Outcome.ACCEPTED,),
        is_cancelled=False,
    ),
)
# Where all four have shared: planted bugs of the later steps show here soonest.
SHARED = Small(
    "shared",
    _SECRET,
    replace(MASKED.alphabet, swapping=(_FOUR,), failing=(), has_shared=True),
)
# Two rounds of three sites, all of which are needed: what is of one round is not of the next.
MASKED_TWICE = Small(
    "masked, twice",
    replace(_SECRET, rounds=2, target=3),
    Alphabet(sites=3, seeds=SEEDS[:1], outcomes=(Outcome.ACCEPTED,), is_cancelled=False),
)

# Sums have scores in them, of the model that a round began from. They end the federation when the
# loss is low, or was no better twice.
SCORED = Small(
    "scored",
    replace(
        EVALUATED,
        rounds=3,
        quorum=1,
        wait_for=1,
        target=1,
        metrics=(Metric("loss", higher_is_better=False),),
        judged_by="loss",
        evaluation_quorum=0,
        is_gated=False,
        max_extensions=0,
        stop_below=0.05,
        patience=2,
        has_scored_sums=True,
    ),
    Alphabet(sites=1, seeds=SEEDS[:1], outcomes=(Outcome.ACCEPTED,), is_cancelled=False),
)
# The same under masks, of three sites that are all needed.
MASKED_SCORED = Small(
    "masked, scored",
    replace(
        MASKED_TWICE.terms,
        rounds=1,
        metrics=SCORED.terms.metrics,
        judged_by="loss",
        is_gated=False,
        has_scored_sums=True,
    ),
    replace(MASKED_TWICE.alphabet, has_shared=True, leaving=(_TWO,)),
)

ALL = (
    TRAINING,
    SELECTION,
    EVALUATION,
    QUORUM,
    UNANIMOUS,
    SCREENED,
    ROUNDS,
    BUFFERED,
    FRESH,
    PAID,
    PAID_AT_SITES,
    PAID_BUFFERED,
    MASKED,
    SHORT_MASKED,
    MASKED_TWICE,
    SCORED,
    MASKED_SCORED,
)

# Short ways to the end of a round: planted bugs of the later steps show here soonest.
SHORT = Small(
    "short",
    replace(EVALUATED, wait_for=2, target=2),
    Alphabet(sites=3, leaving=(_TWO,), seeds=SEEDS[:1]),
)
SHORT_SCREENED = Small(
    "short, screened",
    replace(UNEVALUATED, is_screened=True, max_extensions=0),
    Alphabet(sites=3, leaving=(_TWO,), seeds=SEEDS[:1], outcomes=(Outcome.ACCEPTED,)),
)
# The lead rolls back between rounds of a federation without a barrier.
LED = Small(
    "led",
    replace(_BUFFER, rounds=3),
    Alphabet(sites=2, seeds=SEEDS[:1], outcomes=(Outcome.ACCEPTED,), is_led=True),
)
