"""Our own LeNet on the MXNet of the Python that runs this script.

benchmarks/peers.py runs it with `D2LPAR_MXNET2_PYTHON`, to time MXNet 1.9.1 and 2 in
turn. Its training is "from scratch" or "concise". Prints a JSON line per epoch.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import first_steps
import job


def main() -> None:
    args = json.loads(sys.stdin.readline())
    check = args.pop("check")
    if check:
        data = first_steps.datasets.load(**args["data"])
        size = args["global_batch_size"]
        losses = first_steps.first_steps(data, args["seed"], size)["losses"]
        job.refuse(job.disagreement(list(losses), job.first_steps(check)))
    for line in first_steps.epochs(**args):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
