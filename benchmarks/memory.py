"""Memory of a training against the batch: counted before it runs, and measured.

    python benchmarks/memory.py
    python benchmarks/memory.py --devices gpu:2
    python benchmarks/memory.py --batches 64,128 --images 128      # tiny

LeNet from scratch on 1, 2, ... devices, one epoch. On CPU contexts measured is the
largest resident memory of the process, counted what :mod:`d2lpar.memory` estimates for
all devices; on GPUs what the first one has less free afterwards, and its own estimate.
Writes memory.jsonl to runs/benchmarks, and prints both in MiB.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import arms
import memory_estimate

from d2lpar import datasets
from d2lpar.memory import estimate
from d2lpar.text import plain_table, plural

BATCHES = (256, 512, 1024, 2048, 4096, 8192)
# One temporary buffer in place of 256, each of which keeps the largest size ever asked
# for (chapter memory); freed arrays go back to the system at once.
ENVIRONMENT = {"MXNET_CPU_TEMP_COPY": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}


def taken(chosen: str, batch_size: int, data: str, images: int) -> Iterator[dict]:
    """Bytes that one epoch takes at most."""
    from d2lpar import devices, lenet

    contexts = devices.parse(chosen)
    on_gpu = contexts[0].device_type == "gpu"
    free = estimate.free_memory(contexts)[0] if on_gpu else 0
    source = datasets.load(data, n_train=images, n_test=200)
    training = lenet.train(
        devices=contexts, data=source, num_epochs=1, global_batch_size=batch_size
    )
    start = time.perf_counter()
    for _ in training:
        seconds = time.perf_counter() - start
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux
        if on_gpu:
            peak = free - estimate.free_memory(contexts)[0]
        yield {"batch_size": batch_size, "peak_bytes": peak, "seconds": seconds}


def main() -> None:
    parser = arms.parser(__doc__, rounds=3)
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument(
        "--batches",
        type=lambda words: [int(word) for word in words.split(",")],
        default=BATCHES,
    )
    args = parser.parse_args()
    kind, _, count = args.devices.partition(":")
    noun = "context" if kind == "cpu" else "GPU"
    timed = [
        arms.ours(
            plural(n, noun), 1, "memory:taken", work=f"batch {batch:,}",
            chosen=f"{kind}:{n}", batch_size=batch, data=args.data, images=args.images,
        )
        for n in range(1, int(count) + 1)
        for batch in args.batches
    ]  # fmt: skip
    timed = [
        arm._replace(environment={**arm.environment, **ENVIRONMENT}) for arm in timed
    ]
    data = datasets.load(args.data, n_train=args.images, n_test=200)
    run = arms.record(
        args.out / "memory.jsonl",
        timed,
        arms.measure(timed, args.rounds, warm_up=0),
        work="an epoch of LeNet from scratch",
        dataset=data.name,
        dataset_sha256=data.sha256,
        settings={"n_train": args.images},
        on_gpus=arms.gpu_names(args.devices),
    )
    rows = []
    for line in (line for line in run.lines if line.round == 0):
        sizes = memory_estimate.of_sample(run, line), line.peak_bytes
        mib = [f"{size / 2**20:,.0f}" for size in sizes]
        rows.append([line.arm, f"{line.batch_size:,}", *mib])
    print(plain_table(["", "batch", "counted, MiB", "measured, MiB"], rows))


if __name__ == "__main__":
    main()
