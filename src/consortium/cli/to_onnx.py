"""A shared model as ONNX, made where the task is: on the lead's own machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from consortium.errors import ModelFileError, TaskResultError, VerificationError

if TYPE_CHECKING:
    from consortium.drive.local import LocalWork
    from consortium.plan import Plan
    from consortium.tasks import Site

_EXAMPLES = 8


def write_onnx(
    model: bytes, file: Path, plan_file: Path, sample: Path | None, *, task: str
) -> None:
    """Put the shared tensors in `model` into the task's own network and write it as ONNX.
    Refuses another task than the federation's, and one that keeps something at its sites:
    no model of theirs is complete without it."""
    from consortium.drive.engine import begin, simulated_site
    from consortium.drive.study import load_study
    from consortium.model import load_model

    study = load_study(plan_file, sample)
    if study.task_hash.hex() != task:
        raise VerificationError(
            f"the task of {plan_file} is not the one that the federation runs",
            hint="--plan PLAN: the plan that was locked and served",
        )
    plan = _shared_only(study.plan)
    local, _ = begin(study.task, plan, study.sites, seed=0)
    site = simulated_site(study.sites[0], 0, plan, 0, 0, "export")
    _refuse_private(local, site)
    if not hasattr(study.task, "complete"):
        raise TaskResultError(
            "the task has no network to export: it is plain NumPy",
            hint="consortium model download V gives its arrays as safetensors",
        )
    whole = local.complete(site, load_model(local.layout, model), None)
    whole.to_onnx(file, _example(whole.trained_on))


def _example(records: Any) -> Any:
    """A few of the sample's inputs, as the network takes them."""
    from consortium.torch.batches import adopt

    inputs, _ = next(iter(adopt(records, "training").batches(_EXAMPLES, None)))
    return inputs


def _shared_only(plan: Plan) -> Plan:
    """Fine-tuning is for a site's own copy: what is exported here is the shared model."""
    from consortium.plan.values import PersonalSection

    if plan.personal.name != "finetune":
        return plan
    return plan.model_copy(update={"personal": PersonalSection()})


def _refuse_private(local: LocalWork, site: Site) -> None:
    private = local.inventory(site).private
    if private:
        raise ModelFileError(
            f"{len(private)} tensors of this model stay at the sites, {private[0].name} among "
            "them: the shared part alone cannot run",
            hint="each site exports its own complete model: consortium site export FILE",
        )
