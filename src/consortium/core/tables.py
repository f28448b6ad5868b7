"""The machines as tables: which fact moves which machine from where to where.

`evolve` looks its moves up here, the diagrams in docs/reference/machines.md are drawn from
here, and the explorer checks that nothing moves otherwise. A fact that is not listed for a
step is not legal there.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from consortium.core import site_facts as site
from consortium.core.facts import (
    Aggregated,
    BackupsInvited,
    BaseScored,
    BudgetAdopted,
    BudgetAsked,
    BudgetRefused,
    BudgetReserved,
    BufferingAdopted,
    CohortEvaluated,
    CohortTrained,
    DeadlineExtended,
    Evaluated,
    EvaluationClosed,
    FederationFinished,
    FederationFounded,
    InvitationsKept,
    Judged,
    MemberRemoved,
    ModelInstalled,
    ModelPublished,
    PlanAdopted,
    RolledBack,
    RoundClosed,
    RoundCompleted,
    RoundFailed,
    RoundOpened,
    ScoringAdopted,
    SelectionStarted,
    SiteDropped,
    SitesInvited,
    UpdateAccepted,
    UpdateExcluded,
    UpdateReceived,
    UpdateRejected,
    UpdatesScreened,
)
from consortium.core.secagg_facts import (
    AnswerReceived,
    AnswersClosed,
    ConsentReceived,
    ConsentsClosed,
    KeysClosed,
    KeysReceived,
    MaskingAdopted,
    SharesClosed,
    SharesReceived,
)
from consortium.core.terms import Terms


class Phase(Enum):
    """The public names of a round's life."""

    INITIALIZED = "INITIALIZED"
    SELECTING = "SELECTING"
    TRAINING = "TRAINING"
    AGGREGATING = "AGGREGATING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class Step(Enum):
    """Where exactly a round is. TRAINING has three steps, AGGREGATING seven."""

    INITIALIZED = Phase.INITIALIZED, "opened; its seed is being drawn"
    SELECTING = Phase.SELECTING, "waits until enough sites are eligible"
    KEYING = Phase.TRAINING, "sites give keys, for a sum of which nobody sees the parts"
    SHARING = Phase.TRAINING, "they share their seeds among each other"
    TRAINING = Phase.TRAINING, "sites train; updates come in"
    SCREENING = Phase.AGGREGATING, "closed; updates that stand out are looked for, if the plan asks"
    AGREEING = (
        Phase.AGGREGATING,
        "closed; the members sign who is in the sum, so that all were told the same",
    )
    UNMASKING = (
        Phase.AGGREGATING,
        "closed; the members answer for each other, to take the masks off",
    )
    SUMMING = Phase.AGGREGATING, "closed; the members' updates are summed"
    EVALUATING = Phase.AGGREGATING, "members try the candidate and the base"
    JUDGING = Phase.AGGREGATING, "the gate weighs the evidence"
    RELEASING = Phase.AGGREGATING, "the accepted model is made available"
    COMPLETED = Phase.COMPLETED, "over: accepted, kept or unjudged"
    FAILED = Phase.FAILED, "over, with a reason"

    def __init__(self, phase: Phase, meaning: str) -> None:
        self.phase = phase
        self.meaning = meaning

    __hash__ = object.__hash__  # Enum hashes its name; identity is three times faster


class Standing(Enum):
    """Where a federation is between and during rounds."""

    FOUNDED = "no plan yet"
    PLANNED = "no model yet"
    READY = "between rounds"
    RUNNING = "a round is open"
    FINISHED = "no further rounds"

    __hash__ = object.__hash__


class Stage(Enum):
    """Where one site is in one round; see `participant`."""

    IDLE = "waits for an invitation"
    TRAINING = "trains on its own data"
    SENDING = "the update is spooled and on its way"
    REPORTING = "tells the code of its failure"
    SENT = "holds a receipt"
    EVALUATING = "tries candidate and base on its own test data"
    SCORING = "the sums are spooled and on their way"
    KEYING = "its keys for a secret sum are on their way"
    KEYED = "has given keys"
    SHARING = "its shares are on their way"
    SHARED = "has shared its seeds"
    AGREEING = "its signature on who is in the sum is on its way"
    AGREED = "has signed who is in the sum"
    UNMASKING = "its answer for the others is on its way"

    __hash__ = object.__hash__


Moves = dict[tuple[Any, type[Any]], Any]

ROUND: Moves = {
    (Step.INITIALIZED, SelectionStarted): Step.SELECTING,
    (Step.INITIALIZED, RoundFailed): Step.FAILED,
    (Step.SELECTING, SitesInvited): Step.TRAINING,
    (Step.SELECTING, RoundFailed): Step.FAILED,
    (Step.TRAINING, UpdateReceived): Step.TRAINING,
    (Step.TRAINING, UpdateAccepted): Step.TRAINING,
    (Step.TRAINING, UpdateRejected): Step.TRAINING,
    (Step.TRAINING, UpdateExcluded): Step.TRAINING,
    (Step.TRAINING, SiteDropped): Step.TRAINING,
    (Step.TRAINING, CohortTrained): Step.TRAINING,
    (Step.TRAINING, BackupsInvited): Step.TRAINING,
    (Step.TRAINING, DeadlineExtended): Step.TRAINING,
    (Step.TRAINING, RoundClosed): Step.SUMMING,
    (Step.TRAINING, RoundFailed): Step.FAILED,
    (Step.SCREENING, UpdateExcluded): Step.SCREENING,
    (Step.SCREENING, MemberRemoved): Step.SCREENING,
    (Step.SCREENING, UpdatesScreened): Step.SUMMING,
    (Step.SCREENING, RoundFailed): Step.FAILED,
    (Step.SUMMING, MemberRemoved): Step.SUMMING,
    (Step.SUMMING, BaseScored): Step.SUMMING,
    (Step.SUMMING, Aggregated): Step.EVALUATING,
    (Step.SUMMING, RoundFailed): Step.FAILED,
    (Step.EVALUATING, Evaluated): Step.EVALUATING,
    (Step.EVALUATING, CohortEvaluated): Step.EVALUATING,
    (Step.EVALUATING, SiteDropped): Step.EVALUATING,
    (Step.EVALUATING, EvaluationClosed): Step.JUDGING,
    (Step.EVALUATING, RoundFailed): Step.FAILED,
    (Step.JUDGING, Judged): Step.RELEASING,
    (Step.JUDGING, RoundFailed): Step.FAILED,
    (Step.RELEASING, ModelPublished): Step.RELEASING,
    (Step.RELEASING, RoundCompleted): Step.COMPLETED,
    (Step.RELEASING, RoundFailed): Step.FAILED,
}

# A round whose plan screens takes one step more between its closing and its sum.
SCREENED_ROUND: Moves = {**ROUND, (Step.TRAINING, RoundClosed): Step.SCREENING}

# Without a barrier, sites answer whenever they are done, whatever the open round does just now.
BUFFERED_ROUND: Moves = {
    **ROUND,
    (Step.INITIALIZED, InvitationsKept): Step.INITIALIZED,
    **{
        (step, kind): step
        for step in dict.fromkeys(step for step, _ in ROUND)
        for kind in (UpdateReceived, SiteDropped)
    },
}


# Under masks nobody comes later, and nobody is taken out: members are told at the closing.
_NOT_MASKED = frozenset(
    {
        (Step.SELECTING, SitesInvited),
        (Step.TRAINING, UpdateExcluded),
        (Step.TRAINING, CohortTrained),
        (Step.TRAINING, BackupsInvited),
        (Step.TRAINING, RoundClosed),
        (Step.SUMMING, MemberRemoved),
    }
)
MASKED_ROUND: Moves = {
    **{move: to for move, to in ROUND.items() if move not in _NOT_MASKED},
    (Step.SELECTING, SitesInvited): Step.KEYING,
    (Step.KEYING, KeysReceived): Step.KEYING,
    (Step.KEYING, SiteDropped): Step.KEYING,
    (Step.KEYING, KeysClosed): Step.SHARING,
    (Step.KEYING, RoundFailed): Step.FAILED,
    (Step.SHARING, SharesReceived): Step.SHARING,
    (Step.SHARING, SiteDropped): Step.SHARING,
    (Step.SHARING, SharesClosed): Step.TRAINING,
    (Step.SHARING, RoundFailed): Step.FAILED,
    (Step.TRAINING, RoundClosed): Step.AGREEING,
    (Step.AGREEING, ConsentReceived): Step.AGREEING,
    (Step.AGREEING, ConsentsClosed): Step.UNMASKING,
    (Step.AGREEING, RoundFailed): Step.FAILED,
    (Step.UNMASKING, AnswerReceived): Step.UNMASKING,
    (Step.UNMASKING, AnswersClosed): Step.SUMMING,
    (Step.UNMASKING, RoundFailed): Step.FAILED,
}


def round_moves(terms: Terms) -> Moves:
    """The machine of a round under these terms."""
    if terms.is_buffered:
        return BUFFERED_ROUND
    if terms.is_masked:
        return MASKED_ROUND
    return SCREENED_ROUND if terms.is_screened else ROUND


FEDERATION: Moves = {
    (Standing.FOUNDED, FederationFounded): Standing.FOUNDED,
    (Standing.FOUNDED, PlanAdopted): Standing.PLANNED,
    (Standing.PLANNED, PlanAdopted): Standing.PLANNED,
    (Standing.PLANNED, BufferingAdopted): Standing.PLANNED,
    (Standing.PLANNED, ModelInstalled): Standing.READY,
    (Standing.READY, PlanAdopted): Standing.READY,
    (Standing.READY, BufferingAdopted): Standing.READY,
    (Standing.PLANNED, ScoringAdopted): Standing.PLANNED,
    (Standing.READY, ScoringAdopted): Standing.READY,
    (Standing.PLANNED, MaskingAdopted): Standing.PLANNED,
    (Standing.READY, MaskingAdopted): Standing.READY,
    (Standing.PLANNED, BudgetAdopted): Standing.PLANNED,
    (Standing.READY, BudgetAdopted): Standing.READY,
    (Standing.READY, BudgetAsked): Standing.READY,
    (Standing.READY, BudgetReserved): Standing.READY,
    (Standing.READY, BudgetRefused): Standing.READY,
    (Standing.READY, ModelInstalled): Standing.READY,
    (Standing.READY, RolledBack): Standing.READY,
    (Standing.READY, RoundOpened): Standing.RUNNING,
    (Standing.READY, FederationFinished): Standing.FINISHED,
    (Standing.RUNNING, RoundCompleted): Standing.READY,
    (Standing.RUNNING, RoundFailed): Standing.READY,
    (Standing.FINISHED, PlanAdopted): Standing.READY,
    (Standing.FINISHED, RolledBack): Standing.FINISHED,
}

# An invitation to a newer round is taken from any stage: the older round is over.
PARTICIPANT: Moves = {
    **{(stage, site.InvitationTaken): Stage.TRAINING for stage in Stage},
    **{(stage, site.InvitationDeclined): Stage.REPORTING for stage in Stage},
    (Stage.TRAINING, site.DeadlineMoved): Stage.TRAINING,
    (Stage.TRAINING, site.SpendingHeld): Stage.TRAINING,
    (Stage.TRAINING, site.UpdateSpooled): Stage.SENDING,
    (Stage.TRAINING, site.WorkFailed): Stage.REPORTING,
    (Stage.SENDING, site.ReceiptKept): Stage.SENT,
    (Stage.SENDING, site.RoundLeft): Stage.IDLE,
    (Stage.SENDING, site.EvaluationTaken): Stage.EVALUATING,
    (Stage.SENT, site.EvaluationTaken): Stage.EVALUATING,
    (Stage.SENDING, site.WorkFailed): Stage.REPORTING,
    (Stage.SENT, site.WorkFailed): Stage.REPORTING,
    (Stage.EVALUATING, site.ScoreSpooled): Stage.SCORING,
    (Stage.EVALUATING, site.WorkFailed): Stage.REPORTING,
    (Stage.SCORING, site.ScoreTold): Stage.SENT,
    (Stage.SCORING, site.RoundLeft): Stage.IDLE,
    **{(stage, site.SumJoined): Stage.KEYING for stage in Stage},
    (Stage.KEYING, site.KeysTold): Stage.KEYED,
    (Stage.KEYING, site.SessionPinned): Stage.SHARING,  # the reply to its keys was lost
    (Stage.KEYED, site.SessionPinned): Stage.SHARING,
    (Stage.SHARING, site.SharesTold): Stage.SHARED,
    (Stage.SHARING, site.SharersPinned): Stage.TRAINING,
    (Stage.SHARED, site.SharersPinned): Stage.TRAINING,
    (Stage.SENDING, site.SplitPinned): Stage.AGREEING,
    (Stage.SENT, site.SplitPinned): Stage.AGREEING,
    (Stage.AGREEING, site.ConsentTold): Stage.AGREED,
    (Stage.AGREEING, site.AgreementSeen): Stage.UNMASKING,  # the reply to its signature was lost
    (Stage.AGREED, site.AgreementSeen): Stage.UNMASKING,
    (Stage.UNMASKING, site.AnswerTold): Stage.SENT,
    **{
        (stage, site.WorkFailed): Stage.REPORTING
        for stage in (
            *(Stage.KEYING, Stage.KEYED, Stage.SHARING, Stage.SHARED),
            *(Stage.AGREEING, Stage.AGREED, Stage.UNMASKING),
        )
    },
    **{
        (stage, kind): to
        for stage in (Stage.KEYING, Stage.SHARING, Stage.AGREEING, Stage.UNMASKING)
        for kind, to in ((site.NoteSpooled, stage), (site.RoundLeft, Stage.IDLE))
    },
    (Stage.REPORTING, site.FailureTold): Stage.IDLE,
    (Stage.REPORTING, site.RoundLeft): Stage.IDLE,
}

FINAL_STEPS = frozenset({Step.COMPLETED, Step.FAILED})
