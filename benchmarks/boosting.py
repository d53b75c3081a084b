"""XGBoost on one thread, on all cores, and on a GPU: seconds per training.

    python benchmarks/boosting.py --rounds 3

The GPU wiki shows a GPU at work while XGBoost trains with `gpu_hist`: histograms of all
features, built on the GPU. Since XGBoost 2.0 that is written `tree_method="hist",
device="cuda"`. Without a GPU, or with a build that has no CUDA (`xgboost-cpu`), it
warns and computes on the CPU: a "GPU time" is then none. So this asks the model where
it was trained. Writes boosting.jsonl and .png to runs/benchmarks. Needs `pip install
xgboost`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from importlib import metadata

import arms
import numpy

from d2lpar.errors import RunError
from d2lpar.machine.host import usable_cores

ROWS, COLUMNS, TREES = 100_000, 30, 50


def trainings(device: str, cores: int, repeats: int = 4) -> Iterator[dict]:
    """Seconds and test accuracy of trainings on the same numbers."""
    import xgboost

    X = numpy.random.default_rng(0).random((2 * ROWS, COLUMNS), dtype="float32")
    y = X[:, :5].sum(axis=1) > 2.5
    settings = {"tree_method": "hist", "objective": "binary:logistic"}
    settings |= {"device": device, "nthread": cores, "verbosity": 0}
    train = xgboost.QuantileDMatrix(X[:ROWS], y[:ROWS], nthread=cores)
    test = xgboost.DMatrix(X[ROWS:], y[ROWS:], nthread=cores)
    for _ in range(repeats):
        begin = time.perf_counter()
        model = xgboost.train(settings, train, TREES)
        seconds = time.perf_counter() - begin
        used = json.loads(model.save_config())["learner"]["generic_param"]["device"]
        if used.partition(":")[0] != device:
            raise RunError(f"XGBoost trained on the {used} instead")
        right = (model.predict(test) > 0.5) == y[ROWS:]
        yield {"seconds": seconds, "test_acc": float(right.mean())}


def main() -> None:
    args = arms.parser(__doc__, rounds=3).parse_args()
    n = usable_cores()
    timed = [
        arms.ours(name, threads, "boosting:trainings", device=device, cores=threads)
        for name, device, threads in (
            ("1 thread", "cpu", 1),
            (f"{n} threads", "cpu", n),
            ("1 GPU", "cuda", n),
        )
    ]
    lines = arms.measure(timed, args.rounds)
    work = f"{TREES} trees of XGBoost {metadata.version('xgboost')}, by histograms of "
    work += f"{ROWS:,} x {COLUMNS} numbers"
    arms.show(arms.record(args.out / "boosting.jsonl", timed, lines, work=work))


if __name__ == "__main__":
    main()
