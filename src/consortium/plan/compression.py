"""Smaller updates: the section, what it compiles to, and what does not go together with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from consortium.packing.packed import Packing, Sent
from consortium.plan.problem import Problem
from consortium.plan.section import Section

if TYPE_CHECKING:
    from consortium.plan.values import Plan

# Rules that look at each column by itself: one that most sites leave out is zero to them.
_BY_COLUMN = ("median", "trimmed_mean")
_PLACE_BITS = 8 + 8 / 255  # that name a place: see `consortium.packing.places`


class CompressionSection(Section):
    """Updates in fewer bytes."""

    bits: Literal[0, 4, 8] = Field(
        default=0, description="of each number that is sent, rounded by chance; 0: as it is"
    )
    keep: float = Field(
        default=1.0, gt=0, le=1, description="fraction of the numbers that is sent; 1: all"
    )
    by: Literal["top", "random"] = Field(
        default="top",
        description="the largest, which each site names; or those that a public rule draws",
    )
    error_feedback: bool | None = Field(
        default=None,
        description="a site adds what it did not send to its next update; unset: unless random",
    )

    @property
    def is_on(self) -> bool:
        return bool(self.bits) or self.keep < 1

    @property
    def has_feedback(self) -> bool:
        """Whether sites hold something back. Drawn numbers do better without: what waits for
        its turn gets old, and scaled up they are right in the mean."""
        wanted = not self.draws_places if self.error_feedback is None else self.error_feedback
        return self.is_on and wanted

    @property
    def names_places(self) -> bool:
        return self.keep < 1 and self.by == "top"

    @property
    def draws_places(self) -> bool:
        return self.keep < 1 and self.by == "random"

    def packing(self, plan: bytes) -> Packing:
        """How steps are packed; where places are drawn, under the plan with this digest."""
        if self.draws_places:
            return Packing(self.bits, Sent.DRAWN, self.keep, plan)
        return Packing(self.bits, Sent.TOP if self.names_places else Sent.ALL, self.keep)

    def in_words(self) -> str:
        """What a site sends, for people."""
        which = "the largest" if self.by == "top" else "drawn by a public rule"
        part = (
            f"{self.keep * 100:.3g} % of the numbers, {which}" if self.keep < 1 else "all numbers"
        )
        bits = f", rounded to {self.bits} bits" if self.bits else ""
        later = "; the rest is added to the next update" if self.has_feedback else ""
        return f"updates are compressed: {part}{bits}{later}"


def compression_problems(plan: Plan) -> list[Problem]:
    """What cannot be kept where updates are compressed."""
    section = plan.compression
    if not section.is_on:
        idle = sorted(section.model_fields_set & {"by", "error_feedback"})
        return [
            _problem(key, f"{key} has no effect: nothing is compressed", "bits = 4") for key in idle
        ]
    return [*_sizes(section), *_strategy(plan), *_rules(plan)]


def _problem(key: str, message: str, remedy: str) -> Problem:
    return Problem(("compression", key), message, remedy)


def _sizes(section: CompressionSection) -> list[Problem]:
    found = []
    if section.keep == 1 and "by" in section.model_fields_set:
        found.append(_problem("by", "by has no effect with keep = 1", "keep = 0.1"))
    bits = section.bits or 32
    if section.names_places and section.keep * (bits + _PLACE_BITS) >= bits:
        found.append(
            _problem(
                "keep",
                f"{section.keep:.3g} of the numbers and where each belongs are more bytes than all "
                "of them",
                'keep = 0.1, or by = "random"',
            )
        )
    return found


def _strategy(plan: Plan) -> list[Problem]:
    section, strategy, found = plan.compression, plan.strategy, []
    if section.has_feedback and strategy.clip is not None:
        found.append(
            _problem(
                "error_feedback",
                "clip bounds what one update can do, and error feedback sends later what was held "
                "back",
                "error_feedback = false, or take clip out",
            )
        )
    if strategy.has_variates:
        found.append(
            _problem(
                "bits" if section.bits else "keep",
                "variates are sent beside the step, and the server's would no longer be the mean "
                "of the sites' if they were rounded",
                'name = "fedavg" in [strategy], or take [compression] out',
            )
        )
    return found


def _rules(plan: Plan) -> list[Problem]:
    section, rule, found = plan.compression, plan.strategy.rule, []
    if section.names_places and rule in _BY_COLUMN:
        found.append(
            _problem(
                "by",
                f'rule = "{rule}" looks at each number by itself, and most sites leave most of '
                "them out",
                'by = "random", so that all sites send the same ones',
            )
        )
    if section.draws_places and plan.asynchronous.buffer:
        found.append(
            _problem(
                "by",
                "numbers are drawn anew each round, and a buffer holds updates of several rounds",
                'by = "top"',
            )
        )
    return found
