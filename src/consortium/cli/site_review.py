"""`consortium site review|approve|withdraw`: what a study would do here, and who says yes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli.agent import DEFAULT_HOME, HomeFolder
from consortium.cli.report import Voice, command, data, envelope, say
from consortium.errors import NotApprovedError, PolicyError, UsageError

if TYPE_CHECKING:
    from consortium.site.costs import Purse
    from consortium.site.home import SiteHome
    from consortium.site.machine import Machine
    from consortium.site.review import ReviewedStudy

_HANGING = " " * 10


@contextmanager
def site_of(folder: Path) -> Iterator[tuple[SiteHome, Machine]]:
    """A site's home and its machine, for one command beside the agent."""
    from consortium.drive.clock import SystemClock
    from consortium.site.home import SiteHome
    from consortium.site.machine import Machine

    home = SiteHome.open(folder)
    try:
        yield home, Machine(home.log, SystemClock())
    finally:
        home.close()


@command
def review(
    home: HomeFolder = DEFAULT_HOME,
    show: Annotated[
        str | None, typer.Option(metavar="FILE", help="Print one of the task's files instead.")
    ] = None,
) -> None:
    """Show the study on one screen: what leaves, what stays, what it costs."""
    from consortium.site.review import file_text
    from consortium.site.studies import demand_study

    with site_of(home) as (found, machine):
        study = demand_study(found)
        if show is not None:
            data(file_text(study, show))
            return
        is_free = show_review(found, study)
        approved = (study.task_hash, study.plan_digest) in machine.state.approved
        task = study.task_hash.hex()
        if approved:
            say("\napproved here; consortium site withdraw takes it back")
        elif is_free:
            say(f"\nnobody has approved it: consortium site approve --task {task}")
        if not is_free:
            say(f"\nthe site's policy refuses this study: {remedy_of(found, study)}")
        told = {"task": task, "plan": study.plan_digest.hex(), "approved": approved}
        envelope("site review", told)


@command
def approve(
    home: HomeFolder = DEFAULT_HOME,
    task: Annotated[
        str | None, typer.Option(metavar="HASH", help="The task's hash, as the review shows it.")
    ] = None,
) -> None:
    """Let the study run here.

    Approved are its task and its plan, by their hashes: anything else must be approved again.
    """
    from consortium.site.studies import demand_study

    with site_of(home) as (found, machine):
        study = demand_study(found)
        if not show_review(found, study):
            hint = remedy_of(found, study)
            raise PolicyError("the site's policy refuses this study", hint=hint)
        approve_with(machine, study, task or _asked(study))
        task, plan = study.task_hash.hex(), study.plan_digest.hex()
        envelope("site approve", {"task": task, "plan": plan})


@command
def withdraw(home: HomeFolder = DEFAULT_HOME) -> None:
    """Take every approval back.

    Work under way ends, and only the code of why leaves.
    """
    from consortium.core.participant import Withdraw

    with site_of(home) as (_, machine):
        approved = sorted(machine.state.approved)
        for task, plan in approved:
            machine.feed(Withdraw(task, plan, machine.clock.now_ms()))
            data(f"withdrawn: task {task.hex()}, plan {plan.hex()}")
        if not approved:
            say("nothing was approved")
        envelope("site withdraw", {"withdrawn": [task.hex() for task, _ in approved]})


# ---- shared with join ---------------------------------------------------------------


def show_review(home: SiteHome, study: ReviewedStudy) -> bool:
    """Print the screen; whether the site's policy lets the study run."""
    from consortium.site.policy import read_policy
    from consortium.site.review import review_text

    policy = read_policy(home.policy_file)
    with purse_for(home, study) as purse:
        text = review_text(study, who=home.enrolment, policy=policy, purse=purse)
    for line in text.splitlines():
        for part in _fitted(line):
            data(part)
    return not policy.objections(study.plan, study.layout, study.reported)


def remedy_of(home: SiteHome, study: ReviewedStudy) -> str:
    """The command that helps, where the site's policy refuses a study."""
    from consortium.site.policy import read_policy

    policy, about = read_policy(home.policy_file), (study.plan, study.layout, study.reported)
    return policy.remedy(policy.objections(*about), *about)


@contextmanager
def purse_for(home: SiteHome, study: ReviewedStudy) -> Iterator[Purse | None]:
    """The account that the study spends from; None: it costs nothing. Whoever joins goes on as an
    agent, so prices are made in a process of their own, which ends with the block."""
    from consortium.privacy.pricing import Pricer
    from consortium.site.account import purse_of

    budget = study.plan.budget
    if budget is None:
        yield None
        return
    with closing(Pricer()) as price:
        yield purse_of(home, budget.unit, price)


def _fitted(line: str) -> list[str]:
    """A line as it fits a terminal; in a pipe or a file, as it is."""
    import shutil
    import textwrap

    if not sys.stdout.isatty():
        return [line]
    columns = shutil.get_terminal_size().columns
    return textwrap.wrap(line, columns, subsequent_indent=_HANGING) or [""]


def is_approved(home: SiteHome, study: ReviewedStudy) -> bool:
    """Whether somebody here has approved this task under this plan."""
    with site_of(home.path) as (_, machine):
        return (study.task_hash, study.plan_digest) in machine.state.approved


def approve_study(home: SiteHome, study: ReviewedStudy, given: str) -> None:
    """Approve it, if `given` is its task's hash."""
    with site_of(home.path) as (_, machine):
        approve_with(machine, study, given)


def approve_with(machine: Machine, study: ReviewedStudy, given: str) -> None:
    """As `approve_study`, on a machine that is open."""
    from consortium.core.participant import Approve
    from consortium.plan.noise import check_noise
    from consortium.privacy.pricing import Pricer

    with closing(Pricer()) as price:
        check_noise(study.plan, price)  # a promise that its noise does not keep is refused
    if given.strip().lower() != study.task_hash.hex():
        raise NotApprovedError(
            "the study's task has another hash than the one that you approve",
            hint=f"look at it: consortium site review; its hash is {study.task_hash.hex()}",
        )
    machine.feed(Approve(study.task_hash, study.plan_digest, machine.clock.now_ms()))
    say(f"approved: task {study.task_hash.hex()}")
    say(f"    under plan {study.plan_digest.hex()}")


def _asked(study: ReviewedStudy) -> str:
    """The hash, if somebody at the terminal says yes."""
    if Voice.json or not sys.stdin.isatty():
        raise UsageError(
            "nobody can be asked here",
            hint=f"consortium site approve --task {study.task_hash.hex()}",
        )
    if not typer.confirm("Approve?", default=False, err=True):
        raise NotApprovedError("not approved: nothing runs")
    return study.task_hash.hex()
