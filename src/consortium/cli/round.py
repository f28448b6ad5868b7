"""`consortium round`: the history of a federation, and everything that happened in one round."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli import words
from consortium.cli.happenings import happening
from consortium.cli.operator import DEFAULT_FOLDER, Folder, Named, Operator, operator
from consortium.cli.report import command, data, envelope, say
from consortium.cli.sheet import Grid, Sheet, show
from consortium.errors import PrivacyBudgetExceededError, UsageError

if TYPE_CHECKING:
    from consortium.drive.history import RoundRecord

app = typer.Typer(help="Rounds: their history, and one of them.", no_args_is_help=True)

_PATIENCE_S, _EVERY_S = 15.0, 0.1
# Every round passes these. Under masks nobody is asked, and nothing is judged.
_WITHOUT_MASKS = frozenset({"EvaluationClosed", "Judged"})

Number = Annotated[int, typer.Argument(metavar="N", min=1, help="The round's number.")]


@app.command("list")
@command
def list_rounds(coordinator: Folder = DEFAULT_FOLDER, federation: Named = None) -> None:
    """Show every round in a line."""
    from consortium.cli.told import read_view
    from consortium.drive.history import RoundRecord

    with operator(coordinator) as found:
        raw = found.get(f"{found.federation(federation)}/rounds")
    for line in table_lines(read_view(list[RoundRecord], raw)):
        data(line)
    if not raw:
        say("no round has been opened yet: consortium status says what is waited for")
    envelope("round list", {"rounds": raw})


@app.command("show")
@command
def show_round(
    number: Number, coordinator: Folder = DEFAULT_FOLDER, federation: Named = None
) -> None:
    """Show one round: what happened when, the metrics, the outcome."""
    from consortium.cli.told import read_view
    from consortium.drive.history import RoundRecord

    with operator(coordinator) as found:
        raw = found.get(f"{found.federation(federation)}/rounds/{number}")
    show(round_sheet(read_view(RoundRecord, _without_events(raw)), raw["events"]))
    envelope("round show", raw)


@app.command("cancel")
@command
def cancel(number: Number, coordinator: Folder = DEFAULT_FOLDER, federation: Named = None) -> None:
    """Give the open round up. What sites have sent to it counts for nothing."""
    told = _order(coordinator, federation, f"rounds/{number}/cancel")
    data(f"round {number} is cancelled")
    envelope("round cancel", told)


@app.command("open")
@command
def open_now(coordinator: Folder = DEFAULT_FOLDER, federation: Named = None) -> None:
    """Open the next round now, without waiting for its time."""
    with operator(coordinator) as found:
        path = found.federation(federation)
        before = found.get(path)["rounds"]["done"]
        try:
            told = found.post(f"{path}/rounds/open")
        except PrivacyBudgetExceededError as error:
            raise _unpaid(error, round(time.time() * 1000)) from None
        told = _opened(found, path, told, before)
    if told["round"] is not None or told["rounds"]["done"] > before:
        data(f"round {told['rounds']['done']} is open")
    else:
        say("the round opens as soon as its privacy account has paid: consortium status")
    envelope("round open", told)


def _opened(found: Operator, path: str, told: dict[str, Any], before: int) -> dict[str, Any]:
    """The federation once its round is open, or over. A private one asks its account first,
    which can take some seconds; what is not open then is not waited for."""
    ends = time.monotonic() + _PATIENCE_S
    while told["round"] is None and told["rounds"]["done"] == before and time.monotonic() < ends:
        time.sleep(_EVERY_S)
        told = found.get(path)
    return told


def _unpaid(error: PrivacyBudgetExceededError, now_ms: int) -> PrivacyBudgetExceededError:
    """The coordinator's refusal, with the time in words."""
    from consortium.cli.gauges import frees

    frees_ms = error.details.get("frees_ms")
    at = frees_ms if isinstance(frees_ms, int) else None
    told = PrivacyBudgetExceededError(
        f"the privacy budget does not pay for this round: another one {frees(False, at, now_ms)}",
        hint="consortium budget show    # what was spent, and of which limit",
        frees_ms=at,
    )
    told.details = dict(error.details)
    return told


@app.command("hold")
@command
def hold(coordinator: Folder = DEFAULT_FOLDER, federation: Named = None) -> None:
    """Open no further round until `resume`. An open one goes on to its end."""
    told = _order(coordinator, federation, "hold")
    data("no further round is opened: consortium round resume goes on")
    envelope("round hold", told)


@app.command("resume")
@command
def resume(coordinator: Folder = DEFAULT_FOLDER, federation: Named = None) -> None:
    """Go on after a hold."""
    told = _order(coordinator, federation, "resume")
    data("rounds go on")
    envelope("round resume", told)


@app.command("stop")
@command
def stop(
    yes: Annotated[bool, typer.Option("--yes", help="It is meant.")] = False,
    coordinator: Folder = DEFAULT_FOLDER,
    federation: Named = None,
) -> None:
    """End the federation: no further round. Between rounds only."""
    if not yes:
        raise UsageError(
            "this ends the federation for good",
            hint="consortium round stop --yes; consortium round hold only waits",
        )
    told = _order(coordinator, federation, "stop")
    data("the federation is finished")
    envelope("round stop", told)


def _order(coordinator: Path, federation: str | None, order: str) -> dict[str, Any]:
    with operator(coordinator) as found:
        told: dict[str, Any] = found.post(f"{found.federation(federation)}/{order}")
        return told


def _without_events(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key != "events"}


def table_lines(records: list[RoundRecord]) -> list[str]:
    """The table that a simulation shows, for rounds that were: each with the scores of the model
    that came out of it, where they are known."""
    from consortium.cli.rounds import RoundTable
    from consortium.core.terms import Metric

    names = dict.fromkeys(name for record in records for name in record.told[0])
    metrics = tuple(Metric(name, True) for name in names)
    is_late = any(record.has_late_scores for record in records)
    table = RoundTable(metrics, is_late=is_late, is_past=True)
    return [table.header(), *map(table.row, records)]


def round_sheet(record: RoundRecord, events: list[dict[str, Any]]) -> Sheet:
    """One round on one screen: its events by the time since it was opened."""
    rows = []
    is_masked = any(event["fact"] == "KeysClosed" for event in events)
    for event in events:
        if is_masked and event["fact"] in _WITHOUT_MASKS:
            continue
        text = happening(event, opened_ms=record.opened_ms)
        if text is not None:
            after = f"+{words.span(event['at_ms'] - record.opened_ms)}"
            rows.append((after, event.get("site", ""), text))
    sheet = Sheet(_headline(record), [_pairs(record)])
    if record.has_late_scores:
        sheet.parts += [_late_metrics(record)] if record.base_metrics else []
    elif record.metrics:
        sheet.parts.append(_metrics(record))
    sheet.parts.append(Grid(("after", "site", "what happened"), rows, frozenset({"after"})))
    return sheet


def _headline(record: RoundRecord) -> str:
    if not record.outcome:
        return f"round {record.number}: open"
    why = f" ({words.plain(record.reason)})" if record.reason else ""
    return f"round {record.number}: {record.outcome}{why}"


def _pairs(record: RoundRecord) -> list[tuple[str, str]]:
    took = f", took {words.span(record.ended_ms - record.opened_ms)}" if record.ended_ms else ""
    backups = f" and {record.backups} backups" if record.backups else ""
    silent = f", {record.silent} silent" if record.silent > 0 else ""
    pairs = [
        ("opened", f"{words.moment(record.opened_ms)}{took}"),
        ("started from", f"version {record.version}"),
        ("sites", f"{record.invited} invited{backups}, {record.counted} counted{silent}"),
    ]
    if record.bytes_sent:
        sent = f"{record.updates_sent} updates, {record.bytes_sent:,} bytes"
        pairs.append(("received", sent))
    if record.lost:
        pairs.append(("lost", ", ".join(f"{site} ({why})" for site, why in record.lost)))
    if record.model:
        pairs.append(("published", words.short(record.model)))
    return pairs


def _metrics(record: RoundRecord) -> Grid:
    """The candidate against the base, over all test records of the members."""
    rows = []
    for name, value in record.metrics.items():
        base = record.base_metrics.get(name)
        change = "" if base is None else f"{value - base:+.4f}"
        rows.append(
            (name, words.number(value), "–" if base is None else words.number(base), change)
        )
    header = (f"over {record.samples} records", "candidate", "base", "change")
    return Grid(header, rows, frozenset(header[1:]))


def _late_metrics(record: RoundRecord) -> Grid:
    """The scores of the version that the round began from, which are inside its sum; and of the
    one that came out, once the next sum has told them. Its members may be others, and so their
    test records: so nothing is said of the change."""
    after = f"{record.samples:,}" if record.metrics else "–"
    rows = [("test records", f"{record.base_samples:,}", after)]
    for name, base in record.base_metrics.items():
        value = record.metrics.get(name)
        rows.append((name, words.number(base), "–" if value is None else words.number(value)))
    came = "–" if record.published is None else f"version {record.published}"
    header = ("scores of", f"version {record.version}", came)
    return Grid(header, rows, frozenset(header[1:]))
