"""python -m benchmarks.policies: run workloads under policies and print a table. See ../README.md."""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.policies.arms import make_arm
from benchmarks.policies.report import HEAD, Figures, line, measure
from benchmarks.policies.simulation import simulate
from benchmarks.policies.traces import window
from benchmarks.policies.workloads import WORKLOADS

_DEFAULT_POLICIES = "none,cancel,watermark,strict/absent,strict/fixed,strict/1.5x,strict/truth"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.policies", description=__doc__)
    parser.add_argument("--workload", default=",".join(WORKLOADS), help="one or more, comma-separated")
    parser.add_argument("--load", default="0.9,1.2", help="of the workload's capacity")
    parser.add_argument("--policy", default=_DEFAULT_POLICIES, help="see arms.py")
    parser.add_argument("--window", type=int, default=0, help="0, 1 or 2: disjoint parts of the trace")
    parser.add_argument("--requests", type=int, help="instead of the workload's own number")
    parser.add_argument("--warm", type=float, help="the share of requests at the start that is not counted")
    parser.add_argument("--json", type=Path, help="write all figures there as well")
    chosen = parser.parse_args(arguments)
    rows: list[Figures] = []
    print(HEAD)
    for name in chosen.workload.split(","):
        workload = WORKLOADS[name]
        requests = chosen.requests or workload.requests
        for load in map(float, chosen.load.split(",")):
            arrivals = window(
                workload.trace,
                first=chosen.window * workload.requests,
                requests=requests,
                rate=load * workload.capacity,
                context=workload.context,
            )
            for policy in chosen.policy.split(","):
                arm = make_arm(policy, workload)
                warm_share = workload.warm_share if chosen.warm is None else chosen.warm
                run = simulate(arrivals, arm.engine, arm.make_door, warm_share=warm_share)
                rows.append(measure(run, workload, load=load, policy=policy))
                print(line(rows[-1]), flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
