"""Write the parts of docs/ that are made from the code.

    python scripts/gen_docs.py            rewrite every generated part
    python scripts/gen_docs.py --check    write nothing; exit 1 with a diff if a page differs

A generated part stands between `<!-- generated: name -->` and `<!-- end -->`; everything
around it is written by hand. `PARTS` at the bottom lists the names.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, make_dataclass
from enum import Enum, IntEnum
from hashlib import sha256
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from consortium.coordinator import matrix
from consortium.core import account_facts as a
from consortium.core import codec, tables, terms
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import secagg_facts as m
from consortium.core import site_facts as s
from consortium.core.federation import decide, evolve, owed, owed_by
from consortium.core.ids import Digest, Seat, Seats, SiteId
from consortium.core.state import Federation
from consortium.errors import every_error
from consortium.plan import Plan

ROOT = Path(__file__).resolve().parent.parent
_PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# The inputs that can bring each fact about. "The end of a round" stands for all of
# RoundFailed's, Verdict and Released.
_LATE = "Checked, TrainedCohort, Fail, Dismiss, Tick"
CAUSES: dict[type[Any], str] = {
    f.FederationFounded: "Found",
    f.PlanAdopted: "AdoptPlan",
    f.ModelInstalled: "InstallModel",
    f.SiteAdmitted: "Admit",
    f.CohortAdmitted: "AdmitCohort",
    f.SiteReported: "Report",
    f.SiteDeparted: "Dismiss",
    f.RolledBack: "RollBack",
    f.FederationHeld: "Hold",
    f.FederationResumed: "Resume",
    f.FederationFinished: "Stop; the end of a round",
    f.LogKeyAdopted: "AdoptLogKey",
    f.BufferingAdopted: "AdoptPlan",
    f.MaskingAdopted: "AdoptPlan",
    f.ScoringAdopted: "AdoptPlan",
    f.BudgetAdopted: "AdoptPlan",
    f.BudgetAsked: "OpenRound, Tick",
    f.BudgetReserved: "Granted",
    f.BudgetRefused: "Denied",
    f.BudgetCharged: "with SitesInvited, or with RoundClosed",
    f.BudgetSettled: "AccountTold",
    f.RoundOpened: "OpenRound, Tick",
    f.SelectionStarted: "Drawn",
    f.SitesInvited: "Drawn, Admit, AdmitCohort, Report, Tick",
    f.BackupsInvited: _LATE,
    f.DeadlineExtended: _LATE,
    f.UpdateReceived: "Submit",
    f.UpdateAccepted: "Checked",
    f.UpdateRejected: "Checked",
    f.UpdateExcluded: f"{_LATE}, Screened",
    f.SiteDropped: "Fail",
    f.CohortTrained: "TrainedCohort",
    f.RoundClosed: _LATE,
    f.MemberRemoved: "Dismiss",
    f.Aggregated: "Summed",
    f.Evaluated: "Score",
    f.CohortEvaluated: "ScoredCohort",
    f.EvaluationClosed: "Summed, Score, ScoredCohort, Fail, Dismiss, Tick",
    f.Judged: "Verdict",
    f.ModelPublished: "Released",
    f.RoundCompleted: "Verdict, Released",
    f.RoundFailed: f"{_LATE}, Screened, NotSummed, CancelRound, Admit, AdmitCohort, Report",
    f.UpdatesScreened: "Screened",
    f.InvitationsKept: "OpenRound, Tick",
    f.BaseScored: "Summed",
    m.KeysReceived: "GiveKeys",
    m.KeysClosed: "GiveKeys, Fail, Dismiss, Tick",
    m.SharesReceived: "GiveShares",
    m.SharesClosed: "GiveShares, Fail, Dismiss, Tick",
    m.ConsentReceived: "GiveConsent",
    m.ConsentsClosed: "GiveConsent",
    m.AnswerReceived: "GiveAnswer",
    m.AnswersClosed: "GiveAnswer, Tick",
    s.TaskApproved: "Approve",
    s.ApprovalWithdrawn: "Withdraw",
    s.SiteHeld: "HoldSite",
    s.SiteResumed: "ResumeSite",
    s.InvitationTaken: "Asked",
    s.InvitationDeclined: "Asked, Decline",
    s.DeadlineMoved: "Asked",
    s.UpdateSpooled: "Trained",
    s.WorkFailed: "Broke",
    s.ReceiptKept: "Heard",
    s.FailureTold: "Heard",
    s.EvaluationTaken: "Asked",
    s.ScoreSpooled: "Scored",
    s.ScoreTold: "Heard",
    s.RoundLeft: "TurnedAway",
    s.CheckpointWitnessed: "Shown",
    s.RoundSettled: "Settled",
    s.ReportSpooled: "Describe",
    s.SpendingHeld: "Reserved",
    s.SumJoined: "Asked",
    s.KeysTold: "Heard",
    s.SessionPinned: "Asked",
    s.SharesTold: "Heard",
    s.SharersPinned: "Asked",
    s.SplitPinned: "Asked",
    s.AnswerTold: "Heard",
    s.NoteSpooled: "Spool",
    s.ConsentTold: "Heard",
    s.AgreementSeen: "Asked",
    a.AccountOpened: "OpenAccount",
    a.LimitsSet: "SetLimits",
    a.SpendingReserved: "Reserve",
    a.SpendingCharged: "Charge",
    a.SpendingReturned: "Return",
}


def _table(header: str, rows: Iterable[tuple[str, ...]]) -> str:
    columns = header.split(" | ")
    lines = [f"| {header} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


# ---- machines -----------------------------------------------------------------------


def _diagram(
    moves: tables.Moves,
    states: type[Enum],
    start: tuple[str, str],
    other: tables.Moves | None = None,
) -> str:
    """A state diagram of a table. A fact that does the same everywhere is drawn once; where
    `other` moves differ, they are drawn too."""
    labels: dict[tuple[str, str], list[str]] = {}
    for (source, kind), target in (other or {}).items():
        if moves.get((source, kind)) is not target:
            labels[source.name, target.name] = [kind.__name__]
    for kind in dict.fromkeys(kind for _, kind in moves):
        targets = {state: moves[state, kind] for state in states if (state, kind) in moves}
        if len(targets) == len(states) and len(set(targets.values())) == 1:
            labels.setdefault(("ANY", targets.popitem()[1].name), []).append(kind.__name__)
            continue
        for source, target in targets.items():
            labels.setdefault((source.name, target.name), []).append(kind.__name__)
    lines = ["```mermaid", "stateDiagram-v2"]
    if any(source == "ANY" for source, _ in labels):
        lines.append('    state "any of these" as ANY')
    lines.append(f"    [*] --> {start[0]}{': ' + start[1] if start[1] else ''}")
    for (begin, end), names in labels.items():
        lines.append(f"    {begin} --> {end}: {'<br/>'.join(names)}")
    lines += [f"    {step.name} --> [*]" for step in states if step in tables.FINAL_STEPS]
    return "\n".join([*lines, "```"])


def _steps() -> str:
    duties = _duties_by_step()
    return _table(
        "step | phase | meaning | the coordinator owes | sites are asked for",
        [
            (f"`{step.name}`", step.phase.value, step.meaning, *duties.get(step, ("–", "–")))
            for step in tables.Step
        ],
    )


def _duties_by_step() -> dict[tables.Step, tuple[str, str]]:
    """What is owed at each step, seen on a round that passes through all of them."""
    seen: dict[tables.Step, tuple[dict[str, None], dict[str, None]]] = {}
    for state, _, _ in example(wait_ms=2 * terms.DAY_MS):
        if state.round is None:
            continue
        own, asked = seen.setdefault(state.round.step, ({}, {}))
        own.update(dict.fromkeys(f"`{type(duty).__name__}`" for duty in owed(state)))
        duties = [owed_by(state, seat) for seat in _SEATS]
        asked.update(dict.fromkeys(f"`{type(duty).__name__}`" for duty in duties if duty))
    return {
        step: (", ".join(own) or "–", ", ".join(asked) or "–")
        for step, (own, asked) in seen.items()
    }


def _meanings(states: type[Enum]) -> str:
    return _table("name | meaning", [(f"`{state.name}`", str(state.value)) for state in states])


# ---- errors, plan, command line, packages -------------------------------------------


def _errors() -> str:
    return _table(
        "code | name | whose fault | HTTP | exit | meaning | what to do",
        [
            (
                f"`{kind.code}`",
                f"`{kind.__name__}`",
                kind.fault.value,
                str(kind.http_status),
                str(kind.exit_code),
                inspect.cleandoc(kind.__doc__ or "").replace("\n", " "),
                kind.advice,
            )
            for kind in every_error()
        ],
    )


def _plan_keys() -> str:
    parts = []
    for name, field in Plan.model_fields.items():
        section: Any = field.annotation  # every field of Plan is a section
        rows = [
            (f"`{key}`", _plan_type(about), f"`{_toml(about.default)}`", about.description or "")
            for key, about in section.model_fields.items()
        ]
        parts.append(f"### [{name}]\n\n{section.__doc__}\n")
        parts.append(_table("key | type | default | meaning", rows) + "\n")
    return "\n".join(parts)


def _plan_type(about: Any) -> str:
    hint = about.annotation
    choices = [choice for choice in get_args(hint) if choice is not NoneType]
    if get_origin(hint) is Literal:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in choices)
    if get_origin(hint) is tuple:
        return "list of text"
    if get_origin(hint) is dict:
        return "table of numbers"
    base = choices[0] if choices and NoneType in get_args(hint) else hint
    if get_origin(base) is Literal:  # one of these, or unset
        return " or ".join(f'`"{choice}"`' for choice in get_args(base))
    while get_origin(base) is not None and get_args(base):  # Annotated[int, …]
        about, base = base, get_args(base)[0]
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return words[base] + _limits(about)


def _limits(about: Any) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = getattr(about, "__metadata__", None) or about.metadata
    found = [inner for item in found for inner in getattr(item, "metadata", [item])]
    told = [
        f"{sign} {getattr(x, key)}" for x in found for key, sign in signs.items() if hasattr(x, key)
    ]
    if any("_valid_duration" in repr(item) for item in found):
        return ": a duration"
    return f" {', '.join(told)}" if told else ""


def _toml(value: object) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple():
            return "[]" if not value else str(list(value))
        case _:
            return str(value)


def _cli() -> str:
    """Each command's help in its plain form: the same at every width and without colour."""
    from typer.testing import CliRunner

    from consortium.cli.app import app

    wanted = ["", *(command.name or "" for command in app.registered_commands)]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        inner = [command.name or "" for command in group.typer_instance.registered_commands]
        wanted += [f"{group.name} {name}" for name in inner]
    mode, app.rich_markup_mode = app.rich_markup_mode, None
    try:
        parts = []
        for name in wanted:
            arguments = [*name.split(), "--help"]
            found = CliRunner().invoke(
                app, arguments, prog_name="consortium", terminal_width=100, color=False
            )
            text = "\n".join(line.rstrip() for line in found.output.strip().splitlines())
            parts.append(f"### consortium {name}".rstrip() + f"\n\n```text\n{text}\n```\n")
    finally:
        app.rich_markup_mode = mode
    return "\n".join(parts)


def _modules() -> str:
    source = ROOT / "src" / "consortium"
    rows = []
    for path in sorted(source.rglob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text()))
        if not said:
            continue
        first = " ".join(said.split("\n\n")[0].split())
        first = re.sub(r" \(requirement \w+\)", "", first)
        rows.append((f"`{path.relative_to(source).as_posix()}`", first))
    return _table("module | what it is for", rows)


# ---- facts --------------------------------------------------------------------------


def _written(kind: type[Any]) -> list[str]:
    """The fields that are written with a record: some are told by a fact of their own."""
    return [field.name for field in fields(kind) if terms.TOLD_APART not in field.metadata]


def _fact_kinds(union: Any) -> str:
    rows = []
    for kind in get_args(union):
        hints = get_type_hints(kind)
        told = ", ".join(f"{name}: {_type_name(hints[name])}" for name in _written(kind))
        rows.append((str(kind.KIND), f"`{kind.__name__}`", f"`{told}`", CAUSES[kind]))
    return _table("kind | fact | fields, in order | caused by", rows)


def _type_name(hint: Any) -> str:
    named = {Digest: "digest", Seat: "seat", Seats: "seats", SiteId: "text", bool: "bool"}
    named |= {int: "uint", float: "float", str: "text", bytes: "bytes"}
    if hint in named:
        return named[hint]
    if hint == terms.ReportValue:
        return "value"
    arguments = get_args(hint)
    if NoneType in arguments:
        return f"{_type_name(arguments[0])}?"
    if get_origin(hint) is tuple and arguments[-1] is Ellipsis:
        return f"list of {_type_name(arguments[0])}"
    if get_origin(hint) is tuple:
        return f"({', '.join(_type_name(argument) for argument in arguments)})"
    return str(hint.__name__)


def _enums() -> str:
    kinds = [kind for kind in (*vars(f).values(), *vars(terms).values()) if _is_enum(kind)]
    return _table(
        "enum | values",
        [
            (f"`{kind.__name__}`", ", ".join(f"{item.value} {item.name}" for item in kind))
            for kind in kinds
        ],
    )


def _is_enum(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, IntEnum) and kind is not IntEnum


def _records() -> str:
    kinds = [kind for kind in vars(terms).values() if isinstance(kind, type) and is_dataclass(kind)]
    kinds = list(dict.fromkeys([*kinds, a.Cost, a.Limits]))
    rows = []
    for kind in kinds:
        hints = get_type_hints(kind)
        told = ", ".join(f"{name}: {_type_name(hints[name])}" for name in _written(kind))
        rows.append((f"`{kind.__name__}`", f"`{told}`"))
    return _table("record | fields, in order", rows)


# ---- one whole round as facts -------------------------------------------------------

_SEATS = (Seat(1), Seat(2), Seat(3))
_START_MS = 1_000_000


def _digest(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def _arrivals(start_ms: int) -> Iterator[i.Input]:
    """What three sites and the coordinator's hands say in one round."""
    model, now_ms = _digest("model 1"), start_ms
    yield i.OpenRound(now_ms)
    yield i.Drawn(1, sha256(b"seed 1").digest(), now_ms)
    for seat in _SEATS:
        yield i.Report(seat, (("records", 100 * seat),), now_ms + 1)
    for seat in _SEATS:
        update = _digest(f"update {seat}")
        yield i.Submit(1, seat, update, _digest(f"envelope {seat}"), now_ms + 60_000)
        yield i.Checked(1, seat, update, None, 100.0 * seat, 0.5 * seat, now_ms + 60_001)
    yield i.Summed(1, 3, model, None, now_ms + 61_000)
    for seat in _SEATS:
        sums = ((30.0 * seat,), (60.0 * seat,))
        yield i.Score(1, seat, model, 100, *sums, _digest(f"score {seat}"), now_ms + 62_000)
    yield i.Verdict(1, model, f.Outcome.ACCEPTED, now_ms + 63_000)
    yield i.Released(1, model, now_ms + 63_001)


def example(wait_ms: int = 0) -> Iterator[tuple[Federation, i.Input, tuple[f.Fact, ...]]]:
    """(state before, input, facts) of a federation of three sites and one round."""
    loss = terms.Metric("loss", higher_is_better=False)
    rules = terms.Terms(
        rounds=1, quorum=3, wait_for=3, metrics=(loss,), judged_by="loss", evaluation_quorum=3
    )
    setting_up: list[i.Input] = [
        i.Found("f00d", _START_MS),
        i.AdoptPlan(_digest("plan"), _digest("task"), _digest("layout"), rules, _START_MS),
        i.InstallModel(_digest("model 0"), _START_MS),
        *(i.Admit(SiteId(f"site-{seat}"), b"", _START_MS) for seat in _SEATS),
    ]
    state = Federation()
    for item in (*setting_up, *_arrivals(_START_MS + wait_ms)):
        if wait_ms == 0 and isinstance(item, i.Report):
            continue  # they have just been admitted: nobody waits for a report
        facts = decide(state, item)
        yield state, item, facts
        for fact in facts:
            evolve(state, fact)


def _example() -> str:
    lines = ["```text"]
    position = 0
    for _, item, facts in example():
        lines.append(f"{type(item).__name__} brings")
        for fact in facts:
            lines.append(f"{position:>4}  {show(fact)}")
            raw = codec.encode(fact).hex()
            lines += [f"      {raw[at : at + 80]}" for at in range(0, len(raw), 80)]
            position += 1
    return "\n".join([*lines, "```"])


def show(value: object) -> str:
    """A fact in one line: digests by their first bytes, terms by their name."""
    match value:
        case terms.Terms():
            return "Terms(…)"
        case bytes() if len(value) > 8:
            return f"{value[:4].hex()}…"
        case bytes():
            return f"0x{value.hex()}"
        case Enum():
            return value.name
        case tuple():
            return f"[{', '.join(show(item) for item in value)}]"
        case _ if is_dataclass(value):
            told = ", ".join(f"{x.name}={show(getattr(value, x.name))}" for x in fields(value))
            return f"{type(value).__name__}({told})"
        case _:
            return repr(value)


def _anatomy() -> str:
    """One record, field by field."""
    fact = f.SitesInvited(7, tuple(Seat(n) for n in (1, 2, 3, 4, 9, 300)), 600, 5, 3_600_000, 1000)
    hints = get_type_hints(f.SitesInvited)
    rows = [("kind", "uint", f"{fact.KIND}", codec.encode(fact)[:1].hex())]
    at = 1
    for field in fields(fact):
        value = getattr(fact, field.name)
        size = len(_encoded(value, hints[field.name]))
        raw = codec.encode(fact)[at : at + size].hex(" ")
        rows.append((field.name, _type_name(hints[field.name]), show(value), raw))
        at += size
    assert at == len(codec.encode(fact))
    return _table("field | type | value | bytes", rows)


def _encoded(value: object, hint: Any) -> bytes:
    """One value alone: what a fact with this field only would hold behind its kind."""
    one = make_dataclass("One", [("value", hint)], namespace={"KIND": 0})
    return codec.encode(one(value))[1:]


# ---- pages --------------------------------------------------------------------------

PARTS: dict[str, Callable[[], str]] = {
    "machine-round": lambda: _diagram(
        tables.ROUND, tables.Step, ("INITIALIZED", "RoundOpened"), tables.SCREENED_ROUND
    ),
    "machine-federation": lambda: _diagram(tables.FEDERATION, tables.Standing, ("FOUNDED", "")),
    "machine-participant": lambda: _diagram(tables.PARTICIPANT, tables.Stage, ("IDLE", "")),
    "steps": _steps,
    "standings": lambda: _meanings(tables.Standing),
    "stages": lambda: _meanings(tables.Stage),
    "errors": _errors,
    "access": matrix.table,
    "plan-keys": _plan_keys,
    "cli": _cli,
    "modules": _modules,
    "fact-kinds": lambda: _fact_kinds(f.Fact),
    "site-fact-kinds": lambda: _fact_kinds(s.SiteFact),
    "account-fact-kinds": lambda: _fact_kinds(a.AccountFact),
    "fact-enums": _enums,
    "fact-records": _records,
    "fact-example": _example,
    "fact-anatomy": _anatomy,
}


def rendered(text: str) -> str:
    """A page with its generated parts made anew."""
    return _PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]().strip()}\n\n{match[3]}", text)


def main(arguments: list[str]) -> int:
    differs = False
    used: set[str] = set()
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text()
        used.update(match[2] for match in _PART.finditer(text))
        made = rendered(text)
        if made == text:
            continue
        if "--check" not in arguments:
            path.write_text(made)
            continue
        differs = True
        name = str(path.relative_to(ROOT))
        lines = text.splitlines(), made.splitlines()
        print("\n".join(difflib.unified_diff(*lines, name, f"{name} (from the code)", lineterm="")))
    if used != PARTS.keys():
        print(f"on no page: {', '.join(sorted(PARTS.keys() - used))}")
        return 1
    if differs:
        print("\nhint: python scripts/gen_docs.py")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
