"""How updates become one model: parts that combine, and names for common combinations.

A strategy has five parts, and each can be set by itself: what sites add to their gradients
(`mu`, `variates`), what they send (`normalise`, `variates`), how much each counts
(`weight`), how the rows are combined (`rule`), and how the server steps (`server`). A name
such as "fedadam" sets the parts that its paper sets; the others stay free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from consortium.aggregate.rules import Rule, make_rule
from consortium.aggregate.server import ServerOptimiser
from consortium.model import STEP, Form, Layout
from consortium.plan.section import Section
from consortium.update.weigh import Weigh, Weighting

TAU, VARIATE = "tau", "variate"
ServerName = Literal["sgd", "momentum", "adam", "yogi", "adagrad"]


@dataclass(frozen=True, slots=True)
class Preset:
    """The parts that a name sets."""

    mu: float = 0.0
    variates: bool = False
    normalise: bool = False
    server: ServerName = "sgd"


PRESETS = {
    "fedavg": Preset(),  # McMahan et al. 2017
    "fedprox": Preset(mu=0.01),  # Li et al. 2020
    "fedavgm": Preset(server="momentum"),  # Hsu et al. 2019
    "fedadam": Preset(server="adam"),  # Reddi et al. 2021, as the next two
    "fedyogi": Preset(server="yogi"),
    "fedadagrad": Preset(server="adagrad"),
    "scaffold": Preset(variates=True),  # Karimireddy et al. 2020
    "fednova": Preset(normalise=True),  # Wang et al. 2020
}
# A step of one is the mean itself; adaptive servers scale each coordinate to about `server_lr`.
_SERVER_LR = {"sgd": 1.0, "momentum": 1.0, "adam": 0.01, "yogi": 0.01, "adagrad": 0.1}


class StrategySection(Section):
    """How updates become one model."""

    name: Literal[
        "fedavg",
        "fedprox",
        "fedavgm",
        "fedadam",
        "fedyogi",
        "fedadagrad",
        "scaffold",
        "fednova",
    ] = Field(default="fedavg", description="a name for a combination of the parts below")
    weight: Literal["samples", "uniform", "capped", "sqrt"] | None = Field(
        default=None,
        description="how much a site counts; unset: samples, or uniform (robust, variates)",
    )
    weight_cap: float | None = Field(
        default=None, gt=0, description='samples, for weight = "capped" or "sqrt"'
    )
    clip: float | None = Field(default=None, ge=1e-9, description="largest L2 norm of an update")
    mu: float | None = Field(
        default=None, ge=0, le=1e6, description="pull of local training towards the round's model"
    )
    variates: bool | None = Field(
        default=None, description="control variates against drift, as in SCAFFOLD"
    )
    normalise: bool | None = Field(
        default=None, description="divide each update by its local steps, as in FedNova"
    )
    rule: Literal[
        "mean",
        "median",
        "trimmed_mean",
        "krum",
        "multi_krum",
        "geometric_median",
        "centred_clipping",
    ] = Field(default="mean", description="how the updates are combined")
    hostile: float = Field(
        default=0.2,
        ge=0,
        lt=0.5,
        description="share of hostile sites that a robust rule withstands",
    )
    radius: float | None = Field(
        default=None, gt=0, description="of centred clipping; unset: the median distance"
    )
    anomalies: Literal["keep", "exclude"] = Field(
        default="keep", description="exclude updates that stand out, with the reason on record"
    )
    server: ServerName | None = Field(default=None, description="the server's optimiser")
    server_lr: float | None = Field(
        default=None,
        gt=0,
        le=10,
        description="step of the server; unset: 1, adagrad 0.1, adam and yogi 0.01",
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="of the server's momentum")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="of the server's second moment")
    adaptivity: float = Field(
        default=1e-3, gt=0, description="added to the root of the second moment (tau in the paper)"
    )

    @property
    def preset(self) -> Preset:
        return PRESETS[self.name]

    @property
    def proximal(self) -> float:
        return self.preset.mu if self.mu is None else self.mu

    @property
    def has_variates(self) -> bool:
        return self.preset.variates if self.variates is None else self.variates

    @property
    def is_normalised(self) -> bool:
        return self.preset.normalise if self.normalise is None else self.normalise

    @property
    def is_robust(self) -> bool:
        return self.rule != "mean"

    @property
    def uses_share(self) -> bool:
        """Whether the rule is told how many sites may be hostile."""
        return self.rule in ("trimmed_mean", "krum", "multi_krum")

    @property
    def needs_rows(self) -> bool:
        """Whether single updates are looked at: then a sum over a block of sites will not do."""
        return self.is_robust or self.anomalies == "exclude"

    def weighing(self) -> Weigh:
        """How much each site counts."""
        is_even = self.is_robust or self.has_variates  # variates are means over sites
        by = self.weight or ("uniform" if is_even else "samples")
        return Weigh(Weighting(by), self.weight_cap or 0.0)

    def combining(self) -> Rule:
        """How rows become one."""
        return make_rule(self.rule, self.hostile, self.radius)

    def optimiser(self) -> ServerOptimiser:
        """How the server steps."""
        name = self.server or self.preset.server
        lr = _SERVER_LR[name] if self.server_lr is None else self.server_lr
        return ServerOptimiser(name, lr, self.beta1, self.beta2, self.adaptivity)

    def form(self, layout: Layout) -> Form:
        """What an update of this strategy consists of."""
        vectors = [(STEP, layout.size)]
        if self.is_normalised:
            vectors.append((TAU, 1))
        if self.has_variates:
            vectors.append((VARIATE, layout.size))
        return Form(tuple(vectors), layout.dtype)
