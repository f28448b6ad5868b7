"""`consortium site hold|resume|leave|status|outbox|policy`: what a site's people can always do,
whether the agent runs or not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli.agent import (
    DEFAULT_HOME,
    HomeFolder,
    agent_command,
    isolation_in_one_line,
    way_in_one_line,
)
from consortium.cli.report import Voice, command, data, envelope, say
from consortium.cli.site_review import site_of
from consortium.errors import (
    NotEnrolledError,
    StoreFailedError,
    UnauthorizedClientError,
    UnsignedRequestError,
    UsageError,
)

if TYPE_CHECKING:
    from consortium.site.home import SiteHome
    from consortium.site.machine import Machine
    from consortium.site.review import ReviewedStudy


@command
def hold(home: HomeFolder = DEFAULT_HOME) -> None:
    """Stop at once, until `resume`: work under way ends, and no update and no score leaves.

    The agent goes on asking and reporting, and tells the code of why it does not work.
    """
    from consortium.core.participant import HoldSite

    with site_of(home) as (_, machine):
        machine.feed(HoldSite(machine.clock.now_ms()))
        say("on hold: no update and no score leaves; the agent's questions and reports go on")
        say("consortium site resume goes on")
        envelope("site hold", {"held": True})


@command
def resume(home: HomeFolder = DEFAULT_HOME) -> None:
    """Go on after `hold`."""
    from consortium.core.participant import ResumeSite

    with site_of(home) as (_, machine):
        machine.feed(ResumeSite(machine.clock.now_ms()))
        say("going on with the next invitation")
        envelope("site resume", {"held": False})


@command
def leave(
    home: HomeFolder = DEFAULT_HOME,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Leave the federation for good.

    What was kept here stays here; a new invitation is needed to come back.
    """
    from consortium.core.participant import HoldSite
    from consortium.site.agent import leave_marker
    from consortium.site.enrol import connect
    from consortium.wire.messages import Taken

    with site_of(home) as (found, machine):
        held = found.enrolment
        if not yes:
            _confirm(f"Leave {held.federation_name} for good?")
        machine.feed(HoldSite(machine.clock.now_ms()))  # first: no update leaves from now on
        client = connect(found, machine.clock)
        try:
            client.call("POST", "/v1/leave", reply=Taken)
        except (UnauthorizedClientError, UnsignedRequestError, NotEnrolledError):
            say("the coordinator does not know this site any more: it has left, or was revoked")
        finally:
            client.close()
        leave_marker(found).touch()
        say(f"{held.name} has left {held.federation_name}; its outbox and receipts stay here")
        envelope("site leave", {"site": held.name, "federation": held.federation_name})


def _confirm(question: str) -> None:
    if Voice.json or not sys.stdin.isatty():
        raise UsageError("nobody can be asked here", hint="--yes")
    if not typer.confirm(question, default=False, err=True):
        raise UsageError("nothing was done")


# ---- looking ------------------------------------------------------------------------


@command
def status(home: HomeFolder = DEFAULT_HOME) -> None:
    """What this site is doing. Read from its own log: the coordinator is not asked."""
    with site_of(home) as (found, machine):
        told = _status(found, machine)
        for name, value in told.items():
            if value is not None:
                data(f"{name.replace('_', ' '):<14} {value}")
        envelope("site status", told)


def _status(home: SiteHome, machine: Machine) -> dict[str, object]:
    from consortium.cli.words import ago, short, size
    from consortium.site.agent import leave_marker
    from consortium.site.home import has_agent
    from consortium.site.studies import held_model, held_study
    from consortium.site.way import listens_at

    held, state, now_ms = home.enrolment, machine.state, machine.clock.now_ms()
    study, model = held_study(home), held_model(home)
    seen = machine.newest(_witnessed())
    approval = "none seen yet"
    if study is not None:
        is_approved = (study.task_hash, study.plan_digest) in state.approved
        word = "approved" if is_approved else "NOT approved"
        approval = f"task {short(study.task_hash.hex())} {word}"
    doing = "on hold" if state.is_held else _doing(machine)
    return {
        "site": held.name,
        "federation": f"{held.federation_name} at {held.url}",
        "doing": "it has left" if leave_marker(home).exists() else doing,
        "trouble": _troubles(home, now_ms),
        "agent": "runs" if has_agent(home.path) else f"does not run: {agent_command(home)}",
        "way": way_in_one_line(home, listens_at(home)),
        "study": approval,
        "model": None if model is None else f"version {model.version} ({short(model.model)})",
        "records": held.data or "not set: consortium agent --data FILE",
        "own_log": f"{machine.size} facts",
        "coordinator": f"its log had {state.seen_size} facts, {ago(seen and seen.at_ms, now_ms)}",
        "tasks": isolation_in_one_line(home),
        "disk": f"{size(shutil.disk_usage(home.path).free)} free",
        "budget": None if study is None else _budget(home, study),
    }


def _budget(home: SiteHome, study: ReviewedStudy) -> str | None:
    """What this site's own account has spent; None: the study costs nothing."""
    from consortium.cli.site_review import purse_for

    with purse_for(home, study) as purse:
        return None if purse is None else purse.in_words()


def _troubles(home: SiteHome, now_ms: int) -> str | None:
    """What the agent says is wrong and not over; None: nothing."""
    from consortium.cli.words import ago
    from consortium.site.review import printable
    from consortium.site.troubles import noted

    told = []
    for one in noted(home):
        where = f"round {one.round}: " if one.round else ""
        told.append(f"[{one.code}] {where}{printable(one.text)}, {ago(one.at_ms, now_ms)}")
    return "; ".join(told) or None


def _witnessed() -> Any:  # a class of facts, imported when it is needed
    from consortium.core.site_facts import CheckpointWitnessed

    return CheckpointWitnessed


def _doing(machine: Machine) -> str:
    from consortium.core.tables import Stage

    state = machine.state
    if state.stage in (Stage.IDLE, Stage.SENT):
        told = f"; round {state.unsettled} is not over" if state.unsettled else ""
        return f"waiting to be asked{told}"
    return f"round {state.round}: {state.stage.value}"


@command
def outbox(
    home: HomeFolder = DEFAULT_HOME,
    file: Annotated[
        int | None, typer.Option(metavar="ROUND", help="Take out the update of this round.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to put it (safetensors).")
    ] = None,
) -> None:
    """List everything that ever left this site, with its digest."""
    from consortium.cli.site_outbox import as_json, table
    from consortium.privacy.accountant import epsilon
    from consortium.site.outbox import entries, priced, total_bytes, update_file

    with site_of(home) as (found, machine):
        if file is not None:
            if out is None:
                raise UsageError("--file needs --out FILE")
            _copy(update_file(found, machine, file), out)
            envelope("site outbox", {"round": file, "file": str(out)})
            return
        made = priced(entries(machine), found, machine, epsilon)
        for line in table(made):
            data(line)
        told = [as_json(entry) for entry in made]
        envelope("site outbox", {"entries": told, "bytes": total_bytes(made)})


def _copy(source: Path, out: Path) -> None:
    try:
        shutil.copyfile(source, out)
    except OSError as error:
        raise StoreFailedError(f"{out}: {error.strerror}") from None
    data(str(out))


@command
def members(home: HomeFolder = DEFAULT_HOME) -> None:
    """List the sites that this one has met in secret sums, by their keys.

    Compare a fingerprint with that site's people, then: consortium site policy --set known=KEY,KEY
    """
    from consortium.site.members import Members, fingerprint
    from consortium.site.policy import read_policy

    with site_of(home) as (found, _):
        known = read_policy(found.policy_file).known
        own = found.key.public.hex()
        data(f"{'':<10}  {'fingerprint':<19}  {'key':<64}  id")
        data(f"this site   {fingerprint(own)}  {own}  {found.enrolment.site}")
        rows = sorted(Members(found.path).all().items())
        for site, key in rows:
            word = "known" if key in known else "not known"
            data(f"{word:<10}  {fingerprint(key)}  {key}  {site}")
        if rows:
            say("compare fingerprints with their people, then: site policy --set known=KEY,KEY")
        else:
            say("no other site was met here yet: a plan whose sums are secret brings them")
        told = [{"site": site, "key": key, "known": key in known} for site, key in rows]
        envelope("site members", {"key": own, "members": told})


# ---- the policy ---------------------------------------------------------------------


@command
def policy(
    home: HomeFolder = DEFAULT_HOME,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a rule; repeatable."),
    ] = None,
) -> None:
    """Show what this site's people allow, or change it.

    The agent reads it at every invitation.
    """
    from consortium.site.policy import Policy, parse_policy, read_policy

    with site_of(home) as (found, _):
        rules = read_policy(found.policy_file)
        if change:
            values = rules.model_dump(mode="json", exclude_none=True)
            for text in change:
                name, value = _setting(text)
                values.pop(name, None)
                if value is not None:
                    values[name] = value
            rules = parse_policy(values)
            rules.write(found.policy_file)
        told = rules.model_dump(mode="json")
        for name, field in Policy.model_fields.items():
            data(f"{name} = {_shown(told[name])}")
            say(f"    # {field.description}")
        envelope("site policy", told)


_LISTS = ("tasks", "may_leave", "readable", "known")  # words with commas between will do


def _setting(text: str) -> tuple[str, object]:
    """A key and its value: as TOML has it, or a bare word. Nothing at all: the default."""
    from consortium.plan.toml import parse_toml

    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise UsageError(f"`{text}` is not of the form key=value", hint="--set min_sites=3")
    if not value:
        return name, None
    try:
        return name, parse_toml(f"value = {value}")["value"]
    except ValueError:
        return name, [one.strip() for one in value.split(",")] if name in _LISTS else value


def _shown(value: object) -> str:
    import json

    return "unset" if value is None else json.dumps(value)
