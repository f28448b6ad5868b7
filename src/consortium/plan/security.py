"""Secure aggregation: the section, and the ring on which sites of a masked plan write their rows.

Both ends compute the ring from the plan and the layout alone: the clip, the most sites that can
be in one sum, the bits of a number, and the noise that is added under the masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from consortium.core.terms import PPM, Metric
from consortium.crypto.secure_sum.graph import FULL_UP_TO, USUAL, tolerated_for
from consortium.errors import ImpossiblePlanError
from consortium.model import Form, Layout, masked_row_form
from consortium.plan.section import Duration, Section
from consortium.update.ring import Ring, bits_for
from consortium.update.ring_noise import NoiseShare, share_for
from consortium.update.weigh import Weighting

if TYPE_CHECKING:
    from consortium.plan.values import Plan

USUAL_BITS = 24  # as many as a float32 has
LEAST_BITS = 8


class SecuritySection(Section):
    """Sums of which nobody sees the parts."""

    secure_aggregation: bool = Field(
        default=False, description="sites mask their updates: the coordinator sees the sum alone"
    )
    phase: Duration = Field(
        default="10m",
        description="how long keys, shares, signatures and answers are waited for, each",
    )
    bits: int | None = Field(
        default=None,
        ge=LEAST_BITS,
        le=30,
        description="of a masked number; unset: as many as fit, at most 24",
    )


def most_sites(plan: Plan) -> int | None:
    """The most sites that can be in one sum; None: nothing says so."""
    selection = plan.selection
    if selection.target is None:
        return None
    return -(-selection.target * round(selection.overselect * PPM) // PPM)


def tolerated(plan: Plan) -> int:
    """How many of the fewest that are summed may work with the coordinator, and lay nobody bare.

    Where everybody masks with everybody: fewer than a third, whatever the coordinator tells whom,
    because sites answer for each other only when two thirds of all have signed the same. Of more
    than a hundred, who mask with some, a fifth, if the coordinator keeps to the protocol: see
    `Tolerance`; and `tolerated_anyway` if it does not.
    """
    quorum = plan.federation.quorum
    if not is_full(plan):
        return quorum * USUAL.colluding_percent // 100
    return (quorum - 1) // 3


def tolerated_anyway(plan: Plan) -> int:
    """The same of a coordinator that tells sites whatever it likes, and invites as few of them as
    the plan allows."""
    # No larger number of sites stands fewer than the first one beyond which they have neighbours.
    most = tolerated_for(FULL_UP_TO + 1)
    return tolerated(plan) if is_full(plan) else min((plan.federation.quorum - 1) // 3, most)


def is_full(plan: Plan) -> bool:
    """Whether everybody masks with everybody in every round."""
    return (most_sites(plan) or 0) <= FULL_UP_TO


def honest_sites(plan: Plan) -> int:
    """The fewest survivors of a round whose noise nobody else knows."""
    colluding = plan.privacy.colluding
    return plan.federation.quorum - (tolerated(plan) if colluding is None else colluding)


def ring_of(plan: Plan, size: int) -> Ring:
    """The ring for updates of `size` numbers, without scores. Refuses what does not fit into it."""
    clip, cohort, bits = plan.strategy.clip, most_sites(plan), plan.security.bits
    if clip is None or cohort is None:
        raise ImpossiblePlanError(
            "masked sums need a clip and a target", hint="clip in [strategy], target in [selection]"
        )
    if bits is not None:
        return _with_room(plan, Ring(clip, cohort, bits), size)
    for fewer in range(min(USUAL_BITS, bits_for(cohort)), LEAST_BITS, -1):
        try:
            return _with_room(plan, Ring(clip, cohort, fewer), size)
        except ImpossiblePlanError:
            continue
    return _with_room(plan, Ring(clip, cohort, LEAST_BITS), size)


def share_of(plan: Plan, ring: Ring, size: int) -> NoiseShare | None:
    """What each site adds to its `size` values; None: sites add no noise of that kind."""
    if not plan.has_noise_shares:
        return None
    sigma = plan.privacy.noise_multiplier
    if sigma is None:
        raise ImpossiblePlanError(
            "how much noise this plan takes was not computed", hint="consortium lock PLAN"
        )
    return share_for(ring, size, sigma, honest_sites(plan))


def _with_room(plan: Plan, ring: Ring, size: int) -> Ring:
    """Where sites add noise, with room for the most that it can be: no sum ever wraps."""
    share = share_of(plan, ring, size)
    if share is None:
        return ring
    return Ring(ring.clip, ring.cohort, ring.bits, ring.metrics, ring.beta, share.most)


def masked_form(plan: Plan, layout: Layout, metrics: tuple[Metric, ...] = ()) -> Form:
    """What the file of an update of a masked plan consists of, for a task that reports these
    metrics."""
    size = plan.strategy.form(layout).size
    return masked_row_form(size + plan.ring(layout, metrics).extra)


def masked_sentences(plan: Plan) -> list[str]:
    """What is seen under masks, what is not, and what that takes."""
    noised = ", with noise," if plan.has_noise_shares else ""
    return [
        f"SEEN: the coordinator sees the sum{noised} of the updates of a round{_summed(plan)}; "
        "which sites took part, which dropped out and in which phase; when each of them answered, "
        "and that all send as many bytes.",
        f"HIDDEN: single updates, {_of_each(plan)}, from the coordinator and from other sites: "
        "sites mask what they send, and the masks cancel in the "
        "sum. They sign who is in it, and help to take the masks off only when two thirds of all "
        f"have signed the same. {_while(plan)} Those who do can take their own updates away from "
        "the sum. Sites that the coordinator has made up count among them: only a site whose "
        "people demand known sites (min_known in its policy) is safe from those.",
        "WARNING: nobody can look at an update under its mask. There is no anomaly filter and no "
        "robust rule, the length of an update is not checked, and no site's scores are told: a "
        "hostile site can spoil the model or hide a backdoor in it, and is not found.",
        *_compared(plan),
        *_scores(plan),
    ]


def _summed(plan: Plan) -> str:
    """What else there are sums of."""
    found = ["of what they weigh"] if _tells_weights(plan) else []
    if plan.has_scored_sums:
        found += ["of their scores", "of their numbers of test records"]
    return "".join(f", {one}" for one in found)


def _tells_weights(plan: Plan) -> bool:
    """Whether the sum of weights says something. With noise in shares they are zero."""
    return plan.strategy.weighing().by is not Weighting.UNIFORM and not plan.has_noise_shares


def _compared(plan: Plan) -> list[str]:
    """What is laid bare although every sum keeps its parts to itself."""
    told = ["what that one weighs, which is made of how many records it has"]
    told = told if _tells_weights(plan) else []
    told += ["how many test records that one has"] if plan.has_scored_sums else []
    if not told:
        return []
    also = " and, if both began from the same model, its scores" if plan.has_scored_sums else ""
    return [
        f"WARNING: sums can be compared. Two rounds whose members differ by one site tell "
        f"{', and '.join(told)}{also}."
    ]


def _of_each(plan: Plan) -> str:
    more = ", and how the model does there" if plan.has_scored_sums else ""
    return f"what each site weighs and how many records it has{more}"


def _scores(plan: Plan) -> list[str]:
    if not plan.has_scored_sums:
        return []
    return [
        "SCORES: members try the model that a round begins from, and what they find is summed with "
        "their updates, under the same masks. So a version is scored one round after it was "
        "published, and the last one never. If one member alone has test records, the sum is its "
        "own score. What a site says is taken on trust: a hostile one can make a score anything."
    ]


def _while(plan: Plan) -> str:
    """How many must work with the coordinator to lay somebody bare."""
    quorum, some = plan.federation.quorum, tolerated_anyway(plan)
    few = "no site works" if not some else "one site works" if some == 1 else f"{some} sites work"
    most = "at most " if some else ""
    if is_full(plan):
        return (
            f"So it holds also if the coordinator lies to them, while {most}{few} with it: fewer "
            f"than a third of the {quorum} that are summed at least."
        )
    return (
        f"That holds while at most {USUAL.colluding_percent} % of a round's sites work with a "
        f"coordinator that keeps to the protocol. One that lies to sites lays nobody bare with "
        f"{most}{some} of them, but may see sums of fewer than {quorum}."
    )
