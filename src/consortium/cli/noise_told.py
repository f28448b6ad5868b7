"""What commands say of a private plan's noise before anything is trained with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from consortium.cli.report import say

if TYPE_CHECKING:
    from consortium.drive.study import Study
    from consortium.plan import Plan

_NOISED = (
    "WARNING: scores are shown with the noise that they leave with, and are no measure of a model. "
    "To measure in a simulation: --set privacy.test_records=public"
)


def with_noise(study: Study) -> Study:
    """The study with the noise that its plan takes: computed once, and told from then on."""
    if not study.plan.privacy.is_on:
        return study
    from consortium.plan.noise import resolved

    return replace(study, plan=resolved(study.plan))


def warn_of_noise(plan: Plan, size: int, sites: int | None) -> list[str]:
    """Say it when noise leaves hardly anything of what sites learn; what was said."""
    if not plan.privacy.is_on:
        return []
    from consortium.plan.signal import signal_of, warnings

    found = warnings(signal_of(plan, size, sites))
    for warning in found:
        say(f"WARNING: {warning}")
    return found


def warn_of_studies(studies: Sequence[Study]) -> None:
    """The same for simulations, which mask nothing, and whose noise has protected nobody yet. The
    same words once."""
    protected = [study for study in studies if study.plan.privacy.is_on or study.plan.is_masked]
    if not protected:
        return
    from consortium.plan.promises import simulated_promises
    from consortium.plan.signal import signal_of, warnings

    found = [told for study in protected for told in simulated_promises(study.plan)]
    for study in protected:
        if not study.plan.privacy.is_on:
            continue
        signal = signal_of(study.plan, _size(study), len(study.sites))
        found += [f"WARNING: {told}" for told in warnings(signal)]
        if study.plan.has_noised_scores:
            found.append(_NOISED)
    for told in dict.fromkeys(found):
        say(f"  {told}")


def _size(study: Study) -> int:
    """How many numbers leave a site."""
    from consortium.drive.inspect import inventory_of
    from consortium.model import Layout

    first = study.sites[0]
    return Layout(inventory_of(study.task, first.data, study.plan, first.name).leaves).size
