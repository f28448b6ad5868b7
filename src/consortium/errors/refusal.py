"""Refusals: the protocol says no, and the state is untouched."""

from __future__ import annotations

from consortium.errors.root import ConsortiumError, Fault


class Refusal(ConsortiumError):
    """The protocol says no. The state is exactly what it was before."""

    code = "E0300"
    fault = Fault.PEER
    http_status = 409
    exit_code = 5


class UnauthorizedClientError(Refusal):
    """The site is not on the roster, was revoked, or was not invited to this round."""

    code = "E0301"
    http_status = 403
    exit_code = 4
    advice = "wait for an invitation; a revoked site must be invited to the federation again"


class DeadlineExpiredError(Refusal):
    """The answer came after the deadline. It is not counted; the next round is open to it."""

    code = "E0302"
    advice = "take part in the next round, or ask the lead for a longer round duration"


class NotNeededError(DeadlineExpiredError):
    """Enough others have answered for this secret sum: this answer is not needed any more."""

    code = "E0317"
    advice = "nothing: the sum is as good without it"


class WrongRoundError(Refusal):
    """The message speaks of a round that is not the present one."""

    code = "E0303"
    advice = "ask the coordinator for the present invitation"


class AlreadySubmittedError(Refusal):
    """The site has already answered this round with something else; the first answer stands."""

    code = "E0304"
    advice = "a site answers a round once; send the same bytes again or wait for the next round"


class WrongPhaseError(Refusal):
    """The request is legal, but not in the phase that the round or federation is in."""

    code = "E0305"
    fault = Fault.CALLER


class InsufficientParticipantsError(Refusal):
    """Fewer sites than the minimum are there, so the round cannot open or cannot end well."""

    code = "E0306"
    fault = Fault.CALLER
    exit_code = 8
    advice = "let more sites join, or lower quorum in the plan"


class RoundOpenError(Refusal):
    """A round is open; this can be done between rounds only."""

    code = "E0307"
    fault = Fault.CALLER
    advice = "wait until the round is over, or cancel it"


class NoModelError(Refusal):
    """The federation has no plan or no model yet, so no round can open."""

    code = "E0308"
    fault = Fault.CALLER
    advice = "adopt a plan and install a first model"


class UnknownVersionError(Refusal):
    """There is no model version of that number."""

    code = "E0309"
    fault = Fault.CALLER
    http_status = 404


class FederationOverError(Refusal):
    """The federation has finished."""

    code = "E0310"
    fault = Fault.CALLER
    advice = "adopt a plan with more rounds to go on"


class InvalidInputError(Refusal):
    """A message has a value that no honest sender sends: not finite, out of range."""

    code = "E0311"
    http_status = 422


class NotApprovedError(Refusal):
    """The site has not approved this task under this plan, so it does not run it."""

    code = "E0312"
    fault = Fault.CALLER
    http_status = 403
    advice = "look at what would leave, then approve the task and the plan"


class OnHoldError(Refusal):
    """The site or the federation is on hold."""

    code = "E0313"
    fault = Fault.CALLER
    advice = "resume it"


class PolicyError(Refusal):
    """The site's own policy forbids this. Nothing was run and nothing left."""

    code = "E0314"
    fault = Fault.CALLER
    http_status = 403
    advice = "see what the policy allows; only the site's own people can change it"


class TooStaleError(Refusal):
    """The update was trained from a model that is older than the plan allows. It is not counted."""

    code = "E0315"
    advice = "ask for the present invitation; max_staleness in the plan says how old is too old"


class IsolationError(Refusal):
    """The site demands that tasks are kept apart, and this system cannot do it. Nothing ran."""

    code = "E0316"
    fault = Fault.CALLER
    http_status = 403
    advice = "consortium doctor --home DIR    # says what is missing, and what to do"


class PrivacyBudgetExceededError(Refusal):
    """The privacy budget cannot pay for this. Nothing was released."""

    code = "E0501"
    fault = Fault.CALLER
    http_status = 403
    advice = "wait until the window frees, or plan fewer rounds"

    def __init__(self, message: str, *, hint: str = "", frees_ms: int | None = None) -> None:
        """`frees_ms`: when it could be paid for, at the latest; None: never, or it is not known."""
        super().__init__(message, hint=hint)
        self.frees_ms = frees_ms
        self.details["frees_ms"] = frees_ms


class StaleQuoteError(Refusal):
    """A price was made before somebody else spent from the same account. Nothing was spent."""

    code = "E0502"
    http_status = 409
    advice = "ask for the price again"
