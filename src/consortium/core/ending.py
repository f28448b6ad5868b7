"""How a round fails, and when a federation is done."""

from __future__ import annotations

from consortium.core import facts as f
from consortium.core.state import Round
from consortium.core.terms import LOSS, Terms

Facts = tuple[f.Fact, ...]


def fail(open_round: Round, terms: Terms, reason: f.RoundEnd, now_ms: int) -> Facts:
    """The round ends without a model; the federation ends if that was its last."""
    failed = f.RoundFailed(open_round.number, reason, now_ms)
    return (failed, *finish(terms, open_round.number, now_ms))


def finish(
    terms: Terms,
    number: int,
    now_ms: int,
    stale_rounds: int = 0,
    means: tuple[float, ...] = (),
) -> Facts:
    """Whether this was the last round. `means` are those of the newest model that has some."""
    if means and terms.stop_below is not None:
        if means[terms.metric_index(LOSS)] < terms.stop_below:
            return (f.FederationFinished(f.Finish.CONVERGED, now_ms),)
    if terms.patience and stale_rounds >= terms.patience:
        return (f.FederationFinished(f.Finish.NO_IMPROVEMENT, now_ms),)
    if number >= terms.rounds:
        return (f.FederationFinished(f.Finish.ROUNDS_DONE, now_ms),)
    return ()
