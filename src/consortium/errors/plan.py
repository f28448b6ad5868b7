"""Errors of the plan file."""

from __future__ import annotations

from consortium.errors.root import ConsortiumError, Fault


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
    advice = (
        "the message names the keys, and its hint what to write; docs/reference/plan.md has all"
    )


class UnsupportedPlanError(PlanError):
    """The plan asks for a protection that this version does not have.

    It is refused, because a protection that is silently left out is worse than none.
    """

    code = "E0116"


class PlanFileError(PlanError):
    """The plan file, or the data that it points to, cannot be read."""

    code = "E0117"
    advice = "consortium init my-study    # writes a plan that works"
