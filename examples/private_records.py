"""What does it cost to hide every single record? Accuracy with and without noise.

Three studies of these examples, each as it is and under record-level differential privacy
(DP-SGD at every site): ten sites of NSL-KDD, four hospitals, twenty sites of digits. The task is
the same. The plan is another one, and so is the scaling: federated statistics tell exact means,
which are made of the records, so columns are scaled by fixed ranges instead.

Tests use records that no site trains on, and are done here, outside the study. A simulation's
noise follows from its seed: what is measured is the accuracy, and nobody is protected.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import consortium as co
from consortium.data import Table, dirichlet, iid, load_bundled, load_heart, load_intrusion
from consortium.plan.noise import epsilon_of_rounds
from examples import four_hospitals, hostile_sites, intrusion
from examples.command import main, mean, options, plan_of, records, table

PLAN = """
[federation]
name = "private-records"
rounds = {rounds}
quorum = {quorum}
[selection]
fraction = 1.0
[training]
lr = {lr}
[evaluation]
enabled = false
gate = false
[privacy]
{promise}
delta = 1e-5
clip = 1.0
sampling_rate = 1.0
steps = {steps}
records = {records}
"""
A_ROUND = 'preset = "healthcare"'  # 0.5 a round, 3.5 in seven days
TERMS = ("epsilon", "rounds", "sigma")
HEADER = ("promise", "epsilon of all", *TERMS[1:], "without", "with", "ratio")
# Where a column's values lie, and how far apart; the others lie between 0 and 1. Amounts of
# traffic are log(1 + x) already. Fixed for all sites and seeds, and no epsilon counts them: those
# of traffic are the known largest values of KDD data, rounded. A real study takes others.
TRAFFIC = {
    "duration": (0.0, 11.0),  # e ** 11 s are 17 hours
    "src_bytes": (0.0, 21.0),  # e ** 21 bytes are 1.3 GB
    "dst_bytes": (0.0, 21.0),
    "wrong_fragment": (0.0, 3.0),
    "urgent": (0.0, 3.0),
    "hot": (0.0, 5.0),
    "num_failed_logins": (0.0, 5.0),
    "num_compromised": (0.0, 9.0),
    "su_attempted": (0.0, 2.0),
    "num_root": (0.0, 9.0),
    "num_file_creations": (0.0, 5.0),
    "num_shells": (0.0, 2.0),
    "num_access_files": (0.0, 9.0),
    "count": (0.0, 6.24),  # at most 511 connections
    "srv_count": (0.0, 6.24),
    "dst_host_count": (0.0, 255.0),
    "dst_host_srv_count": (0.0, 255.0),
}
PATIENTS = {
    "age": (50.0, 10.0),
    "sex": (0.5, 0.5),
    "cp": (2.5, 1.0),
    "trestbps": (130.0, 20.0),
    "chol": (200.0, 100.0),
    "fbs": (0.5, 0.5),
    "restecg": (1.0, 1.0),
    "thalach": (150.0, 25.0),
    "exang": (0.5, 0.5),
    "oldpeak": (1.0, 1.0),
}
PIXELS = {f"pixel_{row}_{column}": (0.0, 16.0) for row in range(8) for column in range(8)}


@dataclass(frozen=True, slots=True)
class Measured:
    """One private run. `epsilon` is what all its rounds cost together."""

    accuracy: float
    epsilon: float
    rounds: int
    sigma: float


@dataclass(frozen=True, slots=True)
class Study:
    """A study of one data set: its accuracy by seed as it is, and by seed under a plan."""

    plain: Callable[[int], float]
    private: Callable[[int, co.Plan], Measured]
    plans: Mapping[str, str]  # by what is promised


def known_scale(part: Table, known: Mapping[str, tuple[float, float]]) -> Table:
    """Scaled by fixed ranges; a column that is not named stays as it is."""
    centre, spread = np.array([known.get(name, (0.0, 1.0)) for name in part.columns]).T
    return part.scaled(centre, spread)


def measured(
    task: Any, plan: co.Plan, sites: Sequence[co.SimulatedSite], tests: Sequence[Table], seed: int
) -> Measured:
    """Train privately, and test the last round's model."""
    run = co.simulate(task, plan, sites, seed=seed)
    model, rounds = run.at(sites[0].name), len(run.history.rounds)
    right = [model.predict(test.features).argmax(axis=1) == test.labels for test in tests]
    sigma = run.plan.privacy.noise_multiplier or 0.0
    accuracy = float(np.concatenate(right).mean())
    return Measured(accuracy, epsilon_of_rounds(run.plan, rounds), rounds, sigma)


# ---- the studies --------------------------------------------------------------------


def nslkdd(arguments: argparse.Namespace) -> Study:
    """Ten sites, the largest with a hundred times the records of the smallest."""
    train, test = records(lambda: load_intrusion(arguments.folder), traffic, arguments.bundled)
    scaled, tested = known_scale(train, TRAFFIC), known_scale(test, TRAFFIC)
    usual = {"quorum": 5, "records": 40 if arguments.bundled else 2500}
    plans = {
        **in_total(arguments.epsilon, rounds=10, steps=10, lr=4.0, **usual),
        "0.5 a round": PLAN.format(rounds=7, steps=15, lr=2.0, promise=A_ROUND, **usual),
    }

    def private(seed: int, plan: co.Plan) -> Measured:
        rng = np.random.default_rng(seed)
        parts = dirichlet(train.labels, intrusion.SITES, intrusion.ALPHA, rng, intrusion.FEWEST)
        own = [scaled.rows(part) for part in parts]
        sites = [co.SimulatedSite(f"site-{at}", (part, part)) for at, part in enumerate(own, 1)]
        return measured(intrusion.detection, plan, sites, [tested], seed)

    def plain(seed: int) -> float:
        return intrusion.accuracy(train, test, seed, arguments.rounds)

    return Study(plain, private, plans)


def heart(arguments: argparse.Namespace) -> Study:
    """Four hospitals, of which the smallest has thirty patients to learn from."""
    found = records(lambda: load_heart(arguments.folder), hospitals, arguments.bundled)
    scaled = {name: known_scale(patients, PATIENTS) for name, patients in found.items()}

    def private(seed: int, plan: co.Plan) -> Measured:
        split = {name: as_given(*four_hospitals._split(own, seed)) for name, own in scaled.items()}
        sites = [co.SimulatedSite(name, pair) for name, pair in split.items()]
        tests = [test for _, test in split.values()]
        return measured(four_hospitals.heart, plan, sites, tests, seed)

    def plain(seed: int) -> float:
        sites = four_hospitals.sites_of(found, seed, "federated")
        return four_hospitals.accuracy(sites, "fedavg", seed, arguments.rounds)

    plans = in_total(arguments.epsilon, rounds=20, steps=2, lr=0.1, quorum=3, records=125)
    return Study(plain, private, plans)


def digits(arguments: argparse.Namespace) -> Study:
    """Twenty sites of 67 pictures each."""
    whole = known_scale(load_bundled("digits"), PIXELS)

    def private(seed: int, plan: co.Plan) -> Measured:
        train, test = as_given(*whole.split(0.25, seed))
        parts = iid(len(train), hostile_sites.SITES, np.random.default_rng(seed))
        sites = [co.SimulatedSite(f"site-{at}", train.rows(part)) for at, part in enumerate(parts)]
        return measured(hostile_sites.digits, plan, sites, [test], seed)

    def plain(seed: int) -> float:
        split, rounds = whole.split(0.25, seed), arguments.rounds or 30
        return hostile_sites.accuracy(*split, "mean", "none", seed, rounds)

    plans = in_total(arguments.epsilon, rounds=20, steps=5, lr=0.3, quorum=15, records=67)
    return Study(plain, private, plans)


STUDIES = {"nslkdd": nslkdd, "heart": heart, "digits": digits}


def in_total(epsilon: float, **terms: float) -> dict[str, str]:
    """A plan that promises this for all of its rounds together, under a name for it."""
    promise = f'unit = "record"\nepsilon = {epsilon}'
    return {f"{epsilon:g} in total": PLAN.format(promise=promise, **terms)}


def as_given(train: Table, test: Table) -> tuple[Table, Table]:
    """Who is in which part is a choice of this experiment, made before any site has its records;
    a site that splits its own takes `read_csv(..., split="record")`."""
    return replace(train, follows_records=False), test


def traffic() -> tuple[Table, Table]:
    """Breast-cancer records, which scikit-learn carries: the same task on other records."""
    train, test = standard(intrusion.bundled())
    return as_given(train, test)


def hospitals() -> dict[str, Table]:
    """Breast-cancer records, which scikit-learn carries, at four made-up hospitals."""
    found = four_hospitals.bundled()
    return dict(zip(found, standard(tuple(found.values())), strict=True))


def standard(parts: Sequence[Table]) -> list[Table]:
    """Scaled by the figures of all: these records are public, and nobody knows their columns."""
    features = np.concatenate([part.features for part in parts]).astype(np.float64)
    return [part.scaled(features.mean(axis=0), features.std(axis=0)) for part in parts]


# ---- the command --------------------------------------------------------------------


def compared(study: Study, seeds: int, rounds: int | None) -> list[dict[str, Any]]:
    """One row for each promise."""
    plain, rows = [study.plain(seed) for seed in range(seeds)], []
    for promise, text in study.plans.items():
        plan = plan_of(text, rounds)
        found = [study.private(seed, plan) for seed in range(seeds)]
        private, first = [one.accuracy for one in found], found[0]
        row = {"promise": promise, **{name: getattr(first, name) for name in TERMS}}
        ratio = mean(private) / mean(plain)
        rows.append({**row, "without": plain, "with": private, "ratio": ratio})
    return rows


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    rows = compared(STUDIES[arguments.data](arguments), arguments.seeds, arguments.rounds)
    if not arguments.json:
        print(f"{arguments.data}: accuracy, mean and spread of {arguments.seeds} seeds\n")
        cells = [
            {**row, **{name: _told(row[name]) for name in ("without", "with")}} for row in rows
        ]
        print(table([tuple(row.values()) for row in cells], HEADER))
    return {"data": arguments.data, "seeds": arguments.seeds, "rows": rows}


def _told(values: Sequence[float]) -> str:
    return f"{mean(values):.3f} ± {float(np.std(values)):.3f}"


if __name__ == "__main__":
    parser = options(__doc__ or "", seeds=5, bundled="scikit-learn's breast-cancer records")
    parser.add_argument("--data", choices=sorted(STUDIES), default="nslkdd", help="which study")
    parser.add_argument("--epsilon", type=float, default=3.5, help="in total (default 3.5)")
    main(run, parser)
