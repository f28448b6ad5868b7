"""Every error that consortium raises on purpose, on one page.

    ConsortiumError
    ├── InternalError              ours
    ├── UsageError                 a command was called with something that cannot be
    │   └── UnknownCodeError
    ├── PlanError                  the plan file
    │   ├── PlanSyntaxError  UnknownKeyError  WrongTypeError
    │   └── ImpossiblePlanError  UnsupportedPlanError  PlanFileError
    ├── TaskError                  the user's task
    │   └── TaskEntryError  BundleError  LayoutError  TaskResultError  SiteDataError
    ├── Refusal                    the protocol says no; the state is untouched
    │   ├── UnauthorizedClientError  DeadlineExpiredError  WrongRoundError
    │   ├── AlreadySubmittedError  WrongPhaseError  InsufficientParticipantsError
    │   ├── RoundOpenError  NoModelError  UnknownVersionError  FederationOverError
    │   ├── InvalidInputError  NotApprovedError  OnHoldError
    │   └── PrivacyBudgetExceededError
    ├── UpdateError                one update failed one of the six checks
    │   └── FormatError  DimensionError  MagnitudeError  StalenessError
    │       SignatureError  PrivacyTermsError
    ├── StoreError
    │   ├── ConflictError  MissingBlobError  CorruptBlobError
    │   └── StoreFailedError  CorruptStoreError
    ├── VerificationError          evidence that does not hold
    │   └── ProofError  NoteError  WitnessError  AuditError
    └── CodecError  ModelFileError  WeakKeyError

House rules: a code is never reused and never changes its meaning. `hint` is something
to paste or to do. No message carries a value from somebody's data.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class Fault(Enum):
    """Whose fault it is, hence who must act."""

    OURS = "ours"
    CALLER = "caller"
    PEER = "peer"


class ConsortiumError(Exception):
    """The root: catch this to catch everything that consortium raises on purpose."""

    code: ClassVar[str] = "E0000"
    fault: ClassVar[Fault] = Fault.OURS
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    advice: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.advice
        self.details: dict[str, object] = {}  # more for machines: `--json` shows it


class InternalError(ConsortiumError):
    """Something that cannot happen did. The log is intact: state is rebuilt from it."""

    code = "E0001"
    advice = "run the command again with -vv and report what it prints"


class UsageError(ConsortiumError):
    """A command was called with an argument that it cannot use."""

    code = "E0003"
    fault = Fault.CALLER
    http_status = 400
    exit_code = 2


class UnknownCodeError(UsageError):
    """There is no error of that code."""

    code = "E0002"
    http_status = 404


# ---- the plan -----------------------------------------------------------------------


class PlanError(ConsortiumError):
    """The plan cannot be used. Nothing was started and nothing was sent."""

    code = "E0100"
    fault = Fault.CALLER
    http_status = 422
    exit_code = 3

    def __init__(self, message: str, *, hint: str = "", where: str = "", excerpt: str = "") -> None:
        super().__init__(message, hint=hint)
        self.where = where  # "consortium.toml:9", or empty for a plan made in Python
        self.excerpt = excerpt  # the line with a caret under the culprit


class PlanSyntaxError(PlanError):
    """The plan file is not valid TOML."""

    code = "E0111"


class UnknownKeyError(PlanError):
    """The plan names a section or key that does not exist, most often a typing slip."""

    code = "E0112"


class WrongTypeError(PlanError):
    """A key of the plan has a value of the wrong type or outside its range."""

    code = "E0113"


class ImpossiblePlanError(PlanError):
    """Every key is fine alone, but together they cannot be kept."""

    code = "E0114"


class UnsupportedPlanError(PlanError):
    """The plan asks for a protection that this version does not have.

    It is refused, because a protection that is silently left out is worse than none.
    """

    code = "E0116"


class PlanFileError(PlanError):
    """The plan file, or the data that it points to, cannot be read."""

    code = "E0117"
    advice = "consortium init my-study    # writes a plan that works"


# ---- the task -----------------------------------------------------------------------


class TaskError(ConsortiumError):
    """The user's task cannot be loaded or broke its contract."""

    code = "E0200"
    fault = Fault.CALLER
    http_status = 422
    exit_code = 3


class TaskEntryError(TaskError):
    """`[task] entry` does not lead to a task: no such file, no such name, or not a task."""

    code = "E0201"
    advice = 'write [task] entry = "task.py:name", where name was made with @consortium.numpy_task'


class BundleError(TaskError):
    """The task's files cannot be bundled, or a bundle is not what its hash says."""

    code = "E0202"


class LayoutError(TaskError):
    """Shared tensors differ between sites or rounds in name, shape or type."""

    code = "E0203"
    advice = "shared tensors need one name, shape and type at all sites"


class TaskResultError(TaskError):
    """The task raised, or returned something other than what its contract says."""

    code = "E0204"
    exit_code = 1
    advice = "train returns (shared, records); evaluate returns ({metric: mean}, records)"


class SiteDataError(TaskError):
    """A site's data cannot be read or used."""

    code = "E0205"


# ---- refusals of the protocol -------------------------------------------------------


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


class PrivacyBudgetExceededError(Refusal):
    """The privacy budget cannot pay for this. Nothing was released."""

    code = "E0501"
    fault = Fault.CALLER
    http_status = 403
    advice = "wait until the window frees, or plan fewer rounds"


# ---- the six checks of an update ----------------------------------------------------


class UpdateError(ConsortiumError):
    """An update failed a check and is not counted."""

    code = "E0400"
    fault = Fault.PEER
    http_status = 422


class FormatError(UpdateError):
    """The update is not well-formed: not safetensors, a header too large, or not finite."""

    code = "E0401"


class DimensionError(UpdateError):
    """The update's names, shapes or types are not those of the model."""

    code = "E0402"


class MagnitudeError(UpdateError):
    """The update is larger than the clip, or than ten times the median of the round."""

    code = "E0403"


class StalenessError(UpdateError):
    """The update was trained from another model than the round's."""

    code = "E0404"


class SignatureError(UpdateError):
    """The update is not signed by the site that it claims to come from."""

    code = "E0405"
    http_status = 401


class PrivacyTermsError(UpdateError):
    """The update was not made under the privacy parameters of the plan."""

    code = "E0406"


# ---- storage and formats ------------------------------------------------------------


class StoreError(ConsortiumError):
    """Storage failed or refused."""

    code = "E0600"


class ConflictError(StoreError):
    """Somebody else appended first. The loser reads what is new and decides again."""

    code = "E0601"
    http_status = 409


class MissingBlobError(StoreError):
    """No blob has that digest."""

    code = "E0602"
    http_status = 404


class CorruptBlobError(StoreError):
    """The bytes under a digest do not have that digest."""

    code = "E0603"
    exit_code = 7


class StoreFailedError(StoreError):
    """The disk or the database refused: full, broken, busy or of another format.

    What was acknowledged before is safe; what was refused was not acknowledged.
    """

    code = "E0604"
    http_status = 503
    advice = "free space or mend the disk; the work goes on from the log by itself"


class CorruptStoreError(StoreError):
    """The database is damaged: it is not what was written."""

    code = "E0605"
    exit_code = 7
    advice = "restore a backup, and let the sites compare it with their checkpoints"


class CodecError(ConsortiumError):
    """Bytes are not the one canonical encoding of a known fact, or a value cannot be one."""

    code = "E0701"
    fault = Fault.PEER
    http_status = 422
    exit_code = 7


class ModelFileError(ConsortiumError):
    """A model file is not safetensors of the expected layout."""

    code = "E0801"
    fault = Fault.CALLER
    http_status = 422
    exit_code = 3


class WeakKeyError(ConsortiumError):
    """A public key is malformed, not canonical, or of small order, and proves nothing."""

    code = "E0407"
    fault = Fault.PEER
    http_status = 422
    exit_code = 7


# ---- evidence -----------------------------------------------------------------------


class VerificationError(ConsortiumError):
    """Evidence does not hold: the record was changed, or it is not what it says."""

    code = "E0900"
    fault = Fault.PEER
    http_status = 422
    exit_code = 7


class ProofError(VerificationError):
    """A Merkle proof does not lead to the root that it should lead to."""

    code = "E0901"


class NoteError(VerificationError):
    """A signed note is malformed, or lacks the signature that it needs."""

    code = "E0902"


class WitnessError(VerificationError):
    """A witness refuses a checkpoint: the log shrank, forked, or is another one."""

    code = "E0903"
    http_status = 409


class AuditError(VerificationError):
    """An audit found the record broken; the findings say what and where."""

    code = "E0904"


def every_error() -> tuple[type[ConsortiumError], ...]:
    """All error classes, by code: for `consortium explain` and the reference page."""
    found: list[type[ConsortiumError]] = []
    queue: list[type[ConsortiumError]] = [ConsortiumError]
    while queue:
        kind = queue.pop()
        found.append(kind)
        queue.extend(kind.__subclasses__())
    return tuple(sorted(found, key=lambda kind: kind.code))
