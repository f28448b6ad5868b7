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
    SelectionStarted,
    SiteDropped,
    SitesInvited,
    UpdateAccepted,
    UpdateExcluded,
    UpdateReceived,
    UpdateRejected,
    UpdatesScreened,
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
    """Where exactly a round is. AGGREGATING has five steps."""

    INITIALIZED = Phase.INITIALIZED, "opened; its seed is being drawn"
    SELECTING = Phase.SELECTING, "waits until enough sites are eligible"
    TRAINING = Phase.TRAINING, "sites train; updates come in"
    SCREENING = Phase.AGGREGATING, "closed; updates that stand out are looked for, if the plan asks"
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
        for step in Step
        if step.phase not in (Phase.COMPLETED, Phase.FAILED)
        for kind in (UpdateReceived, SiteDropped)
    },
}


def round_moves(terms: Terms) -> Moves:
    """The machine of a round under these terms."""
    if terms.is_buffered:
        return BUFFERED_ROUND
    return SCREENED_ROUND if terms.is_screened else ROUND


FEDERATION: Moves = {
    (Standing.FOUNDED, FederationFounded): Standing.FOUNDED,
    (Standing.FOUNDED, PlanAdopted): Standing.PLANNED,
    (Standing.PLANNED, PlanAdopted): Standing.PLANNED,
    (Standing.PLANNED, BufferingAdopted): Standing.PLANNED,
    (Standing.PLANNED, ModelInstalled): Standing.READY,
    (Standing.READY, PlanAdopted): Standing.READY,
    (Standing.READY, BufferingAdopted): Standing.READY,
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
    (Stage.REPORTING, site.FailureTold): Stage.IDLE,
    (Stage.REPORTING, site.RoundLeft): Stage.IDLE,
}

FINAL_STEPS = frozenset({Step.COMPLETED, Step.FAILED})
