"""W2 for one round, as a user's script would run it. `benchmarks.simulation` times it.

python -m benchmarks.first_round
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.simulation import simulated
from benchmarks.workloads import SETTINGS, study_of
from consortium.drive.simulate import Options


def main() -> None:
    study = study_of(replace(SETTINGS["W2"], rounds=1))
    simulated(study, Options(on_round=lambda ended: print(ended.outcome, flush=True)))


if __name__ == "__main__":
    main()
