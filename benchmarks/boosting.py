"""XGBoost on the CPU and on a GPU: seconds, accuracy, and where it really ran.

    python benchmarks/boosting.py

The GPU wiki shows a GPU at work while XGBoost trains with `gpu_hist`: histograms of all
features, built on the GPU. Since XGBoost 2.0 that is written `tree_method="hist",
device="cuda"`; XGBoost 3 rejects the old name. Without a GPU, or with a build that has
no CUDA (`xgboost-cpu`), it warns and computes on the CPU: a "GPU time" is then none.
So this asks the model where it was trained. Needs `pip install xgboost`.
"""

from __future__ import annotations

import json
import time
import warnings

import numpy
from loky import ProcessPoolExecutor

from d2lpar.machine.gpus import cuda_devices


def boost(device: str, trees: int = 20) -> dict:
    """Train on 20,000 x 30 numbers, after one tree that warms up."""
    import xgboost

    rng = numpy.random.default_rng(0)
    X = rng.random((20_000, 30), dtype="float32")
    y = X[:, :5].sum(axis=1) > 2.5
    settings = {"tree_method": "hist", "device": device, "objective": "binary:logistic"}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        data = xgboost.QuantileDMatrix(X, y)
        xgboost.train(settings, data, 1)  # a GPU's context takes its time once
        begin = time.perf_counter()
        model = xgboost.train(settings, data, trees)
        seconds = time.perf_counter() - begin
    return {
        "device": json.loads(model.save_config())["learner"]["generic_param"]["device"],
        "seconds": seconds,
        "accuracy": float(((model.predict(data) > 0.5) == y).mean()),
        "warned": [str(w.message).splitlines()[0].split(": ")[-1] for w in warned[:1]],
    }


def main() -> None:
    for device in ("cpu", "cuda"):
        with ProcessPoolExecutor(1) as fresh_process:
            done = fresh_process.submit(boost, device).result()
        print(f"asked for {device}: ran on {done['device']}, ", end="")
        print(f"{done['seconds']:.2f} s, accuracy {done['accuracy']:.4f}")
        for message in done["warned"]:
            print(f"  it warned: {message}")
    print("NVIDIA GPUs here:", [d.name for d in cuda_devices()] or "none")


if __name__ == "__main__":
    main()
