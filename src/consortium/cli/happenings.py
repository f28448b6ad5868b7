"""The facts of a round in words, as an operator reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consortium.cli import words

Event = dict[str, Any]
UNNAMED = "a site"  # what the coordinator calls each one, for whoever may not inspect them
_MOST_NAMES = 8


def happening(event: Event, *, opened_ms: int) -> str | None:
    """What an event of a round says; None for what is not worth a line: sites that report."""
    name = str(event["fact"])
    if name == "SiteReported":
        return None
    if name in ("RoundOpened", "DeadlineExtended", "SitesInvited"):
        event = event | {"deadline": words.span(event["deadline_ms"] - opened_ms)}
    tell = _TELL.get(name)
    # A newer coordinator may know facts that we do not.
    return name if tell is None else tell(event)


def folded(listed: list[str]) -> list[str]:
    """Names as they are; of sites without names, how many they are."""
    count = listed.count(UNNAMED)
    return listed if count < 2 else [f"{count} sites"]


def _names(listed: list[str]) -> str:
    listed = folded(listed)
    more = len(listed) - _MOST_NAMES
    return ", ".join(listed[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _after(listed: list[str]) -> str:
    """Names after a number that says how many."""
    return "" if UNNAMED in listed else f": {_names(listed)}"


# Of single sites the coordinator tells no numbers to whoever may not inspect them.


def _received(event: Event) -> str:
    digest = event.get("update")
    return "update received" + (f": {words.short(digest)}" if digest else "")


def _accepted(event: Event) -> str:
    parts = []
    if event.get("weight") is not None:
        parts.append(f"weight {event['weight']:g}")
    if event.get("norm") is not None:
        parts.append(f"norm {event['norm']:.4g}")
    return f"update accepted{': ' if parts else ''}{', '.join(parts)}"


def _evaluated(event: Event) -> str:
    return f"evaluated on {event['samples']} records" if "samples" in event else "evaluated"


def _base_scored(event: Event) -> str:
    if not event["samples"]:
        return f"the sum has no score of version {event['version']}"
    return f"the sum has the scores of version {event['version']}: {event['samples']} records"


def _aggregated(event: Event) -> str:
    return f"{event['count']} updates summed: candidate {words.short(event['model'])}"


_TELL: dict[str, Callable[[Event], str]] = {
    "InvitationsKept": lambda e: (
        f"invitations of earlier rounds still hold: {_names(e['seats']) or 'none'}"
    ),
    "MaskingAdopted": lambda _: "sums are secret: sites mask what they send",
    "ScoringAdopted": lambda _: "scores come inside the sums, one round later",
    "KeysReceived": lambda _: "keys received, for a secret sum",
    "KeysClosed": lambda e: (
        f"{len(e['seats'])} sites mask with each other, "
        f"a sum takes {e['quorum']}{_after(e['seats'])}"
    ),
    "SharesReceived": lambda _: "its seeds received in shares, sealed for the others",
    "SharesClosed": lambda e: f"{len(e['seats'])} sites have shared{_after(e['seats'])}",
    "ConsentReceived": lambda _: "signed who is in the sum",
    "ConsentsClosed": lambda e: f"{len(e['seats'])} members signed who is in the sum",
    "AnswerReceived": lambda _: "answered for the others",
    "AnswersClosed": lambda e: f"the masks can come off: {len(e['seats'])} members answered",
    "BufferingAdopted": lambda e: f"no barrier: {e['buffer']} updates move the model",
    "BudgetAdopted": lambda e: f"rounds are paid from the account `{e['account']}`",
    "BudgetAsked": lambda _: "the privacy account is asked to pay for it",
    "BudgetReserved": lambda _: "the privacy account holds its costs ready",
    "BudgetRefused": lambda _: "the privacy account cannot pay for it now",
    "BudgetCharged": lambda _: "its privacy costs are spent",
    "BudgetSettled": lambda _: "the privacy account knows what became of its costs",
    "RoundOpened": lambda e: f"opened from version {e['version']}, quorum {e['quorum']}",
    "SelectionStarted": lambda e: f"seed drawn: {words.short(e['seed'])}",
    "SitesInvited": lambda e: (
        f"{len(e['seats'])} of {e['eligible']} invited{_after(e['seats'])}; "
        f"deadline +{e['deadline']}"
    ),
    "BackupsInvited": lambda e: f"backups invited: {_names(e['seats'])}",
    "DeadlineExtended": lambda e: f"deadline extended to +{e['deadline']}",
    "UpdateReceived": _received,
    "UpdateAccepted": _accepted,
    "UpdateRejected": lambda e: f"update rejected: {words.plain(e['fault'])}",
    "UpdateExcluded": lambda e: f"update excluded, it stands out: {words.plain(e['fault'])}",
    "SiteDropped": lambda e: f"fell out: {words.plain(e['failure'])}",
    "CohortTrained": lambda e: f"{len(e['seats'])} simulated sites trained",
    "RoundClosed": lambda e: f"closed with {len(e['members'])} members{_after(e['members'])}",
    "MemberRemoved": lambda _: "taken out: it was revoked before the sum",
    "UpdatesScreened": lambda e: f"screened, {e['count_left']} left",
    "BaseScored": _base_scored,
    "Aggregated": _aggregated,
    "Evaluated": _evaluated,
    "CohortEvaluated": _evaluated,
    "EvaluationClosed": lambda e: f"evaluation closed with {e['evaluations']} answers",
    "Judged": lambda e: f"the gate says: {words.plain(e['outcome'])}",
    "ModelPublished": lambda e: f"version {e['version']} published: {words.short(e['model'])}",
    "RoundCompleted": lambda e: f"completed: {words.plain(e['outcome'])}",
    "RoundFailed": lambda e: f"failed: {words.plain(e['reason'])}",
    "SiteAdmitted": lambda _: "joined the federation",
    "SiteDeparted": lambda e: words.plain(e["departure"]),
    "PlanAdopted": lambda e: f"plan adopted: {words.short(e['plan'])}",
    "ModelInstalled": lambda e: f"version {e['version']} installed: {words.short(e['model'])}",
    "RolledBack": lambda e: f"rolled back to version {e['version']}",
    "FederationHeld": lambda _: "put on hold",
    "FederationResumed": lambda _: "resumed",
    "FederationFinished": lambda e: f"the federation is finished: {words.plain(e['reason'])}",
    "LogKeyAdopted": lambda e: f"the log is signed with another key: {words.short(e['key'])}",
}
