"""The one screen before anything runs: who asks, what would run, what leaves, what it costs.

It is made from files alone: nothing of the task is executed. Whatever comes from outside is
shown with its control characters spelt out, so that no file can hide a line of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from consortium.bundle import Bundle, unpack
from consortium.core.ids import Digest
from consortium.core.terms import Metric
from consortium.drive.inspect import inventory_text
from consortium.drive.lock import Lock, parse_lock
from consortium.errors import ConsortiumError, UsageError, VerificationError
from consortium.model import Layout, digest_of
from consortium.plan.values import Plan
from consortium.privacy.accountant import epsilon
from consortium.site.costs import Purse, account_lines, costs_in_words
from consortium.site.home import Enrolment
from consortium.site.policy import Policy, update_bytes
from consortium.tasks import Inventory
from consortium.wire.messages import ScoreNote, StudySheet

_INDENT = " " * 8
_LONGEST_NUMBER = -2.2250738585072014e-308  # no text of a float has more characters


@dataclass(frozen=True, slots=True)
class ReviewedStudy:
    """A study whose parts belong together. Make one with `verify_study`."""

    sheet: StudySheet
    plan: Plan
    layout: Layout
    bundle: Bundle
    lock: Lock

    @property
    def task_hash(self) -> Digest:
        return self.lock.task

    @property
    def plan_digest(self) -> Digest:
        return self.lock.plan

    @property
    def reported(self) -> tuple[Metric, ...]:
        """Of what the task measures, what leaves."""
        return self.plan.reported(self.lock.metrics)


def verify_study(
    sheet: StudySheet, plan: bytes, layout: bytes, bundle: bytes, lock: bytes
) -> ReviewedStudy:
    """The study in these bytes. Every digest is compared and the task's hash computed again;
    whatever does not fit raises `VerificationError`."""
    named = {"plan": plan, "layout": layout, "bundle": bundle, "lock": lock}
    for name, data in named.items():
        if digest_of(data).hex() != getattr(sheet, name):
            raise VerificationError(f"the {name} is not the one that the study names")
    try:
        study = ReviewedStudy(
            sheet,
            Plan.from_canonical(plan),
            Layout.from_canonical(layout),
            unpack(bundle),
            parse_lock(lock, "the study's lock"),
        )
        study.plan.check()
        study.plan.terms(study.lock.metrics)
    except VerificationError:
        raise
    except ConsortiumError as error:
        raise VerificationError(f"the study cannot be used: {error.message}") from None
    _check_together(study)
    return study


def _check_together(study: ReviewedStudy) -> None:
    lock, sheet = study.lock, study.sheet
    entry = study.plan.task.entry
    task = study.bundle.task_hash(study.layout, lock.entry, lock.metrics, lock.pinned)
    for what, fits in (
        ("the plan is not the one that was locked", lock.plan.hex() == sheet.plan),
        ("the task is not the one that was locked", lock.task.hex() == sheet.task),
        ("the layout is not the one that was locked", lock.layout == study.layout),
        ("plan and lock start the task in different places", lock.entry == entry),
        ("the task's files do not have the task's hash", task == lock.task),
        ("the file that the task starts in is missing", _starts_in(study, entry)),
    ):
        if not fits:
            raise VerificationError(what)


def _starts_in(study: ReviewedStudy, entry: str) -> bool:
    return entry.partition(":")[0] in {name for name, _ in study.bundle.files}


# ---- for people ---------------------------------------------------------------------


def review_text(
    study: ReviewedStudy,
    *,
    who: Enrolment | None = None,
    policy: Policy | None = None,
    inventory: Inventory | None = None,
    purse: Purse | None = None,
) -> str:
    """The screen. `inventory` is what the task itself says of its model, once it may run;
    `purse` is the account that a private plan spends from."""
    parts = [
        _who(who) if who is not None else [],
        _task(study),
        _plan(study),
        _leaves(study, inventory),
        _cost(study.plan, purse),
        _policy(study, policy) if policy is not None else [],
    ]
    return printable("\n".join(line for part in parts for line in part))


def file_text(study: ReviewedStudy, name: str) -> str:
    """One of the task's files, to read before it runs."""
    for known, data in study.bundle.files:
        if known == name:
            return printable(data.decode(errors="backslashreplace"))
    names = ", ".join(known for known, _ in study.bundle.files)
    raise UsageError(f"the task has no file `{name}`", hint=f"it has: {names}")


def printable(text: str) -> str:
    """The text with every character spelt out that a terminal would not show as itself."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1]
        for letter in text
    )


def _who(who: Enrolment) -> list[str]:
    return [
        f"WHO     {who.url} asks {who.name}",
        f"{_INDENT}federation {who.federation_name} ({who.federation})",
        f"{_INDENT}words, to compare by phone: {' '.join(who.words)}",
    ]


def _task(study: ReviewedStudy) -> list[str]:
    lines = [f"TASK    {study.task_hash.hex()}", f"{_INDENT}starts in {study.lock.entry}"]
    lines += [
        f"{_INDENT}{sha256(data).hexdigest()}  {len(data):>9,} bytes  {name}"
        for name, data in study.bundle.files
    ]
    if study.lock.pinned is not None:
        lines.append(f"{_INDENT}on frozen layers with the digest {study.lock.pinned.hex()}")
    return lines


def _plan(study: ReviewedStudy) -> list[str]:
    lines = [f"PLAN    {study.plan_digest.hex()}"]
    return lines + _indented([*rules_in_words(study.plan), *study.plan.guarantees()])


def rules_in_words(plan: Plan) -> list[str]:
    """The plan's rules, in a few lines."""
    federation, training, strategy = plan.federation, plan.training, plan.strategy
    lines = [
        f"up to {federation.rounds} rounds, each with {federation.quorum} sites or more, "
        f"each at most {plan.round.duration} and {plan.round.max_extensions} extensions of "
        f"{plan.round.extension}",
        f"local training: {_steps_in_words(plan)}, "
        f"{training.optimizer} with learning rate {training.lr:g}",
        f"strategy {strategy.name}; updates are combined by {strategy.rule}, weighed by "
        f"{strategy.weighing().by.value}",
    ]
    if federation.every != "0s":
        lines.append(f"one round every {federation.every}")
    if strategy.clip is not None:
        lines.append(f"an update is scaled down to norm {strategy.clip:g}")
    if plan.compression.is_on:
        lines.append(plan.compression.in_words())
    if plan.personal.name != "none" or plan.personal.layers:
        layers = ", ".join(plan.personal.layers) or "what the task marks"
        lines.append(f"personal: {plan.personal.name}; stays here: {layers}")
    if plan.has_scored_sums:
        lines.append(
            "members try the model that a round begins from on their test records; all metrics "
            "that the task reports are masked with their updates"
        )
    elif plan.evaluation.enabled:
        how = ", told with noise" if plan.has_noised_scores else ""
        metric = plan.evaluation.metric
        lines.append(f"members try every new model on their test records: {metric}{how}")
    return lines


def _steps_in_words(plan: Plan) -> str:
    training, privacy = plan.training, plan.privacy
    if privacy.hides != "record":
        return f"{training.epochs} epochs, batches of {training.batch_size}"
    steps = privacy.steps_of(training.epochs)
    return f"{steps:,} steps, each on a record with chance {privacy.rate:g}, with noise"


def _leaves(study: ReviewedStudy, inventory: Inventory | None) -> list[str]:
    plan, layout = study.plan, study.layout
    metrics = ", ".join(metric.name for metric in study.reported)
    metrics += "; with noise, on them and on how many" if plan.has_noised_scores else ""
    lines = inventory_text(inventory or Inventory(layout.specs), plan, study.reported).splitlines()
    stays = next(at for at, line in enumerate(lines) if line.startswith("STAYS"))
    told = [f"{_INDENT}metrics that are summed: {metrics}"] if plan.evaluation.enabled else []
    told += _bounds(study)
    kept = ["STAYS   everything that is not listed under LEAVES, also what the task prints"]
    if inventory is None:
        kept.append("STAYS   private layers; their names are shown once the task may run")
    return [*lines[:stays], *told, *lines[stays:], *kept]


def _bounds(study: ReviewedStudy) -> list[str]:
    """How much leaves at most, as the outbox counts it; and what has no such bound."""
    plan, rounds = study.plan, study.plan.federation.rounds
    update = update_bytes(plan, study.layout, study.reported)
    is_told = plan.evaluation.enabled and not plan.has_scored_sums  # else it is in the update
    score = score_bytes(len(study.reported)) if is_told else 0
    scores = f" and {score:,} bytes of scores" if score else ""
    return [
        f"LEAVES  at most {update:,} bytes of update{scores} a round, "
        f"{(update + score) * rounds:,} bytes in {rounds} rounds; "
        f"masked: {'yes' if plan.is_masked else 'no'}; noised: {_noised(plan)}",
        *_keys_and_shares(plan),
        "LEAVES  besides, not in these bytes: that this site is there; what it reports of itself, "
        "when it joins and when that changes; the code of a failure",
    ]


def _noised(plan: Plan) -> str:
    if plan.has_noise_shares:
        return "yes, before it is masked"
    if plan.is_masked and plan.privacy.hides == "site":
        return "no: the coordinator noises the sum, which it sees"
    return _NOISED[plan.privacy.hides]


def _keys_and_shares(plan: Plan) -> list[str]:
    if not plan.is_masked:
        return []
    return [
        "LEAVES  for the masks, besides: two public keys, this site's seeds in shares that are "
        "sealed for the other sites, and one share of each other site's seeds"
    ]


def score_bytes(metrics: int) -> int:
    """The most bytes that tell a score of so many metrics."""
    sums = [_LONGEST_NUMBER] * metrics
    note = ScoreNote(model="0" * 64, samples=(1 << 62) - 1, candidate=sums, base=sums)
    return len(note.model_dump_json())


_NOISED = {
    "none": "no",
    "record": "yes, in training",
    "site": "no: the coordinator sees it, and noises the sum",
    "local": "yes, before it leaves",
}


def _cost(plan: Plan, purse: Purse | None) -> list[str]:
    if plan.budget is not None:
        price = epsilon if purse is None else purse.price
        account = [] if purse is None else account_lines(plan, purse)
        return [f"COST    {costs_in_words(plan, price)} together", *_indented(account)]
    told = "an update can reveal records of this site to whoever reads it"
    if plan.is_masked:
        told = "sums and models can reveal something of this site to whoever reads them"
    return [
        "COST    there is no differential privacy in this plan, so no limit on what is learnt:",
        f"{_INDENT}{told}",
    ]


def _policy(study: ReviewedStudy, policy: Policy) -> list[str]:
    objections = policy.objections(study.plan, study.layout, study.reported)
    if not objections:
        told = "needs no asking" if policy.approves(study.task_hash) else "somebody must approve"
        return [f"POLICY  nothing against it; {told}"]
    return [f"POLICY  refuses: {objection}" for objection in objections]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"{_INDENT}{line}" for line in lines]
