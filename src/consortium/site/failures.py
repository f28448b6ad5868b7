"""Which code leaves the site when work fails here. The text stays."""

from __future__ import annotations

import errno

from consortium import errors as e
from consortium.core.facts import Failure

# By the first kind that fits; whatever else goes wrong in the task's code is TRAINING.
_BY_KIND: tuple[tuple[type[BaseException], Failure], ...] = (
    (e.QualityError, Failure.DATA_QUALITY),
    (e.SiteDataError, Failure.REQUIREMENTS),
    (e.LayoutError, Failure.MODEL),
    (e.ModelFileError, Failure.MODEL),
    (e.FormatError, Failure.MODEL),
    (e.DimensionError, Failure.MODEL),
    (e.ResourceLimitError, Failure.RESOURCES),
    (e.TaskResultError, Failure.TRAINING),
    (e.TaskError, Failure.REQUIREMENTS),
    (e.PlanError, Failure.REQUIREMENTS),
    (e.PrivacyBudgetExceededError, Failure.BUDGET),
    (e.DeadlineExpiredError, Failure.RESOURCES),
    (e.Refusal, Failure.POLICY),
    (e.StoreError, Failure.RESOURCES),
    (e.InternalError, Failure.RESOURCES),
    (MemoryError, Failure.RESOURCES),
    (OSError, Failure.RESOURCES),
)
_TOLD = "failure"  # in the details of an error that came from the task's process
# torch's own, which are no MemoryError: on a GPU by its name, else by its text.
_NO_MEMORY, _NOT_ALLOCATED = "OutOfMemoryError", "can't allocate memory"


def failure_of(error: BaseException) -> Failure:
    """The code for an error that work at this site met."""
    told = getattr(error, "details", {}).get(_TOLD)
    if isinstance(told, str):
        return Failure[told]
    if _lacks_memory(error):
        return Failure.RESOURCES
    for kind, failure in _BY_KIND:
        if isinstance(error, kind):
            return failure
    return Failure.TRAINING


def marked(error: e.ConsortiumError, failure: Failure) -> e.ConsortiumError:
    """The same error, for which `failure_of` gives this code."""
    error.details[_TOLD] = failure.name
    return error


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether it is for want of memory, or was raised because of that."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == _NO_MEMORY:
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if isinstance(error, RuntimeError) and _NOT_ALLOCATED in str(error):
            return True
        error = error.__cause__
    return False
