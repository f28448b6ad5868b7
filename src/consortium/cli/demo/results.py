"""What came of it: each hospital's own model beside the common one, in figures and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from consortium.cli.demo.records import Records


@dataclass(frozen=True, slots=True)
class Comparison:
    """Right answers of each hospital's own model and of the common one, on test records."""

    names: tuple[str, ...]
    tested: tuple[int, ...]  # test records at each hospital
    own: tuple[tuple[int | None, ...], ...]  # right answers: [trained at][tried at]
    common: tuple[int, ...]  # right answers, tried at

    @classmethod
    def of(cls, cross_site: dict[str, Any], records: list[Records]) -> Comparison:
        """From the accuracies that `consortium simulate --cross-site` tells."""
        tested = tuple(found.tested for found in records)

        def right(accuracies: list[float | None]) -> tuple[int | None, ...]:
            pairs = zip(accuracies, tested, strict=True)
            return tuple(None if ratio is None else round(ratio * count) for ratio, count in pairs)

        own = tuple(right(row) for row in cross_site["own"])
        common = tuple(count or 0 for count in right(cross_site["common"]))
        return cls(tuple(cross_site["sites"]), tested, own, common)

    # ---- sums over hospitals --------------------------------------------------------

    def at_home(self, place: int) -> tuple[int, int]:
        """(own, common): right answers at home."""
        return self.own[place][place] or 0, self.common[place]

    def elsewhere(self, place: int) -> tuple[float, float]:
        """(own, common): accuracy over the test records of all other hospitals."""
        others = [at for at in range(len(self.names)) if at != place]
        records = sum(self.tested[at] for at in others)
        own = sum(self.own[place][at] or 0 for at in others)
        return own / records, sum(self.common[at] for at in others) / records

    @property
    def home_total(self) -> tuple[int, int]:
        """(own, common): right answers at home, over all hospitals."""
        pairs = [self.at_home(place) for place in range(len(self.names))]
        return sum(own for own, _ in pairs), sum(common for _, common in pairs)

    @property
    def elsewhere_mean(self) -> tuple[float, float]:
        """(own, common): accuracy away from home, the mean over hospitals."""
        pairs = [self.elsewhere(place) for place in range(len(self.names))]
        return sum(own for own, _ in pairs) / len(pairs), sum(c for _, c in pairs) / len(pairs)

    def told(self, *, has_elsewhere: bool) -> dict[str, Any]:
        """The figures for `--json`."""
        rows: dict[str, Any] = {}
        for place, name in enumerate(self.names):
            own, common = self.at_home(place)
            tested = self.tested[place]
            rows[name] = {
                "tested": tested,
                "alone_at_home": own / tested,
                "together_at_home": common / tested,
            }
            if has_elsewhere:
                alone, together = self.elsewhere(place)
                rows[name] |= {"alone_elsewhere": alone, "together_elsewhere": together}
        return rows


# ---- run one ------------------------------------------------------------------------


def everywhere_table(found: Comparison) -> list[str]:
    """At home and elsewhere."""
    lines = [
        "accuracy    test        own model            common model",
        "            records     at home  elsewhere   at home  elsewhere",
    ]
    for place, name in enumerate(found.names):
        tested = found.tested[place]
        own, common = (right / tested for right in found.at_home(place))
        alone, together = found.elsewhere(place)
        lines.append(
            f"{name:<11} {tested:>7}     {own:>7.3f}  {alone:>9.3f}   {common:>7.3f}  "
            f"{together:>9.3f}"
        )
    return lines


def everywhere_words(found: Comparison) -> str:
    """Where it helps, and where not."""
    alone, together = found.elsewhere_mean
    own, common = found.home_total
    word = "not better" if common <= own else "better"
    return (
        f"At the other hospitals, a hospital's own model is right in {alone:.1%} of cases, "
        f"the common one in {together:.1%}. At home the common one is {word}: {common} of "
        f"{sum(found.tested)} cases, {own} with each hospital's own ({_by_hospital(found)})."
    )


# ---- run two ------------------------------------------------------------------------


def home_table(found: Comparison) -> list[str]:
    """At home only: nobody else has the columns."""
    lines = ["accuracy at home    test records    alone  together"]
    for place, name in enumerate(found.names):
        tested = found.tested[place]
        own, common = (right / tested for right in found.at_home(place))
        lines.append(f"{name:<19} {tested:>12}  {own:>7.3f}  {common:>8.3f}")
    return lines


def home_words(found: Comparison) -> str:
    """Whether learning together paid, in cases."""
    own, common = found.home_total
    told = f"Alone, {own} of {sum(found.tested)} cases are right; together {common} "
    told += f"({_by_hospital(found)})."
    if common <= own:
        told += " Hospitals that have columns of their own gain nothing at home here; and "
        told += "such a model cannot be tried elsewhere."
    return told


def _by_hospital(found: Comparison) -> str:
    """The difference at home in cases, which is what a small hospital can measure."""
    parts = []
    for place, name in enumerate(found.names):
        own, common = found.at_home(place)
        parts.append(f"{name} {common - own:+d}" if common != own else f"{name} ±0")
    return ", ".join(parts)
