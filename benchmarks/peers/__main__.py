"""What runs in a peer's environment: see `benchmarks.peers`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from benchmarks.peers import Result
from benchmarks.workloads import Setting


def run(name: str, setting: Setting) -> Result | None:
    """None in a process that only helps another."""
    if name == "flwr":
        from benchmarks.peers import flower

        return flower.run(setting)
    from benchmarks.peers import pfl_research

    return pfl_research.run(setting)


if __name__ == "__main__":
    result = run(sys.argv[1], Setting(**json.loads(sys.argv[2])))
    if result is not None:
        print(json.dumps(asdict(result)), flush=True)
