"""LeNet beside its peers, ours and theirs in turn, in fresh processes, equal threads.

    python benchmarks/peers.py                                  # all, 5,000 images
    python benchmarks/peers.py --peers ddp,pytorch_loop --num-devices 1,2
    python benchmarks/peers.py --preset book --threads 1       # 60,000 images
    python benchmarks/peers.py --devices gpu:4 --num-devices 1,2,4

A peer is a script in benchmarks/peers/ that does the same job elsewhere: same network,
initial parameters, batch size and threads. Before it is timed it repeats our first
steps, and it refuses to be timed if its losses differ from ours (first_steps.py). What
cannot run here (a library that is not installed, a GPU that MXNet has no code for) is a
row with the reason; the other rows are measured. JAX may stand in an environment of its
own, whose Python, with d2lpar installed, D2LPAR_JAX_PYTHON names. Writes a record and
its picture to runs/peers, and prints the seconds per epoch. Loads no MXNet in this
process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import arms
import msgspec
from arms import Arm

from d2lpar import datasets, experiments
from d2lpar.errors import D2lparError, RunError
from d2lpar.machine import builds, host
from d2lpar.records import labels
from d2lpar.records.kinds import ArmAbsent, ArmSample, Run
from d2lpar.text import plural

PRESETS = {
    "quick": {"rounds": 1, "num_epochs": 2, "n_train": 5_000, "n_test": 1_000},
    "book": {"rounds": 3, "num_epochs": 3, "n_train": None, "n_test": None},
}
CHAPTERS = {"scratch": "multiple_gpus", "concise": "multiple_gpus_concise"}
# Scripts in peers/.
PEERS = ("d2l_notebook", "d2l_pytorch", "pytorch_loop", "ddp", "jax_loop")

# On a GPU the form decides whether Python or the GPU takes the time.
FORMS = {
    "pytorch_loop": {
        "eager": "eager", "graph": "CUDA graph", "compile": "torch.compile",
        "compiled-graph": "torch.compile, CUDA graph",
    },
    "ddp": {"eager": "eager", "graph": "CUDA graph"},
    "jax_loop": {"step": "a call per step", "scan": "a call per epoch"},
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """Devices of one kind ("cpu", "gpu"), used in these counts.

    `threads` are those of each context or process; None shares the cores out.
    """

    kind: str
    counts: Sequence[int]
    threads: int | None = None
    forms: Sequence[str] = ()  # of the peers' steps on GPUs; () for all
    ours: Sequence[str] = tuple(CHAPTERS)

    def threads_each(self, n: int) -> int:
        """Threads of each of `n` contexts or processes."""
        return self.threads or max(1, host.usable_cores() // n)

    @property
    def all_threads(self) -> int:
        """Threads of a peer that has one process for all devices."""
        return max(n * self.threads_each(n) for n in self.counts)

    def words(self, n: int, one: str, many: str) -> str:
        """`n` devices in words: "2 GPUs", "2 contexts, 1 thread each"."""
        if self.kind == "gpu":
            return plural(n, "GPU")
        each = plural(self.threads_each(n), "thread")
        return f"1 {one}, {each}" if n == 1 else f"{n} {many}, {each} each"

    def words_together(self, n: int) -> str:
        """`n` GPUs, or all threads of the CPU, in words."""
        on_gpu = self.kind == "gpu"
        return plural(n, "GPU") if on_gpu else plural(self.all_threads, "thread")


def arms_of(
    peers: Sequence[str], chosen: Choice, data: dict, recipe: dict, check: str = ""
) -> list[Arm]:
    """Ours on every count of devices, and the peers; `check` names our first steps.

    `data` are the arguments of `datasets.load`, `recipe` those of our `train`.
    """
    every = []
    for training in chosen.ours:
        experiment = experiments.get(CHAPTERS[training])
        training = training.replace("scratch", "from scratch")
        for n in chosen.counts:
            ours = arms.ours(
                f"d2lpar {training}, {chosen.words(n, 'context', 'contexts')}",
                chosen.threads_each(n),
                "first_steps:epochs",
                training=training,
                data=data,
                num_devices=n,
                devices=f"{chosen.kind}:{n}",
                **recipe,
            )
            changes = dict(ours.environment)
            for name, value in experiment.environment.get(chosen.kind, {}).items():
                changes[name] = os.environ.get(name, value)
            every.append(ours._replace(environment=changes))
    sizes = {name: data[name] for name in ("n_train", "n_test")}
    common = {**recipe, **sizes, "data": data["name"], "check": check}
    seed = common.pop("seed")
    theirs = [row for row in _theirs(chosen, seed) if row[0] in peers]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(",")
    for peer, name, n, omp, flags in theirs:
        environment = {
            "OMP_NUM_THREADS": None if omp is None else str(omp),
            "CUDA_VISIBLE_DEVICES": ",".join(gpus[:n]) if chosen.kind == "gpu" else "",
        }
        every.append(arms.peer(name, f"{peer}.py", {**common, **flags}, environment))
    return every


def _theirs(
    chosen: Choice, seed: int
) -> Iterator[tuple[str, str, int, int | None, dict]]:
    """Each peer on the devices that its script can use.

    The peer, the arm's name, how many devices, OMP_NUM_THREADS (None: the script's
    default) and the flags of that script alone.
    """
    on_gpu, together = chosen.kind == "gpu", chosen.all_threads
    torch = {"device": "cuda" if on_gpu else "cpu", "seed": seed}
    notebook = "d2l's notebook loop"
    if on_gpu:
        for n in chosen.counts:
            name = f"{notebook}, {chosen.words_together(n)}"
            yield "d2l_notebook", name, n, None, {"num_devices": n}
    else:
        name = f"{notebook}, {chosen.words_together(1)}"
        yield "d2l_notebook", name, 1, together, {}
        yield "d2l_notebook", f"{notebook}, as the book has it", 1, None, {}
    for n in chosen.counts if on_gpu else [1]:
        name = f"d2l's PyTorch tab, {chosen.words_together(n)}"
        flags = {"threads": together, "num_devices": n}
        yield "d2l_pytorch", name, n, together, flags
    for form, words in _forms("pytorch_loop", chosen):
        name = f"PyTorch, {words or 'plain loop'}, {chosen.words_together(1)}"
        flags = {"threads": together, "form": form, **torch}
        yield "pytorch_loop", name, 1, together, flags
    for n in chosen.counts:
        for form, words in _forms("ddp", chosen):
            where = chosen.words(n, "process", "processes")
            name = ", ".join(filter(None, ("PyTorch DDP", words, where)))
            threads = chosen.threads_each(n)
            flags = {"threads": threads, "num_devices": n, "form": form, **torch}
            yield "ddp", name, n, threads, flags
    for n in chosen.counts:
        where = chosen.words_together(n)
        if n > 1 and not on_gpu:
            where = f"{n} devices of one CPU, {where}"
        for form, words in _forms("jax_loop", chosen):
            name = ", ".join(filter(None, ("JAX", words, where)))
            flags = {"threads": together, "num_devices": n, "form": form, **torch}
            yield "jax_loop", name, n, None, flags


def _forms(peer: str, chosen: Choice) -> list[tuple[str, str]]:
    """The forms of a peer's step, and how a row names them: on CPUs only the first."""
    forms = FORMS[peer]
    if chosen.kind == "cpu":
        return [(next(iter(forms)), "")]
    wanted = chosen.forms or forms
    return [(form, words) for form, words in forms.items() if form in wanted]


def flags_of(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line, with the counts of devices and the sizes that it leaves out."""
    parser = arms.parser(__doc__, rounds=None)
    parser.set_defaults(out=Path("runs/peers"))
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--peers", default=",".join(PEERS), help="some of these")
    every = sorted({form for of_peer in FORMS.values() for form in of_peer})
    parser.add_argument("--forms", help=f"some of {','.join(every)} [default: all]")
    parser.add_argument("--ours", default=",".join(CHAPTERS), help="some of these")
    parser.add_argument("--devices", default=f"cpu:{host.usable_cores()}")
    parser.add_argument("--num-devices", help="counts, as in 1,2,4")
    parser.add_argument("--threads", type=int, help="of each context and process")
    parser.add_argument("--num-epochs", type=int, help="timed ones; one warms up")
    parser.add_argument("--n-train", type=int, help="only the first images")
    parser.add_argument("--n-test", type=int)
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="auto", help="auto, fashion-mnist or sample")
    parser.add_argument(
        "--first-steps", type=Path, help="from first_steps.py, where MXNet is missing"
    )
    args = parser.parse_args(words)
    args.peers = args.peers.split(",")
    if unknown := set(args.peers) - set(PEERS):
        parser.error(f"--peers {', '.join(unknown)}: write some of {', '.join(PEERS)}")
    args.ours = args.ours.split(",")
    if unknown := set(args.ours) - set(CHAPTERS):
        parser.error(f"--ours {', '.join(unknown)}: write scratch, concise or both")
    args.forms = args.forms.split(",") if args.forms else []
    if unknown := set(args.forms) - set(every):
        parser.error(f"--forms {', '.join(unknown)}: write some of {', '.join(every)}")
    args.kind, _, most = args.devices.partition(":")
    counts = args.num_devices or ",".join(
        str(2**k) for k in range(int(most).bit_length())
    )
    args.counts = [int(n) for n in counts.split(",")]
    given = [name for name in PRESETS[args.preset] if getattr(args, name)]
    args.name = "custom" if given or args.threads else args.preset
    for name, value in PRESETS[args.preset].items():
        setattr(args, name, getattr(args, name) or value)
    return args


def main(words: Sequence[str] | None = None) -> None:
    """Time LeNet beside its peers: ours, d2l's and PyTorch's training, in turn."""
    args = flags_of(words)
    chosen = Choice(args.kind, args.counts, args.threads, args.forms, args.ours)
    sizes = {"n_train": args.n_train, "n_test": args.n_test}
    data = datasets.load(args.data, **sizes)
    is_sample = data.name.endswith("-sample")
    source = {"name": "sample" if is_sample else "fashion-mnist", **sizes}
    recipe = {
        "num_epochs": args.num_epochs + 1,
        "global_batch_size": args.global_batch_size,
        "lr": args.lr,
        "seed": args.seed,
    }
    has_mxnet = bool(builds.installed_builds())
    lines: list[ArmSample | ArmAbsent] = []
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        arms.share_what_jax_compiles(folder)
        check = str(args.first_steps.resolve()) if args.first_steps else ""
        if has_mxnet and not check:
            check = f"{folder}/first_steps.npz"
            arms.answer(
                "first_steps:write_first_steps", path=check, data=source,
                seed=args.seed, global_batch_size=args.global_batch_size,
            )  # fmt: skip
        timed = arms_of(args.peers, chosen, source, recipe, check)
        if not has_mxnet:
            timed = [arm for arm in timed if arm.is_peer]
        for round_ in range(args.rounds):
            for line in arms.measure(timed, rounds=1):
                lines.append(msgspec.structs.replace(line, round=round_))
            absent = [getattr(line, "why_not", "") for line in lines]
            if all(absent):
                raise RunError(f"nothing could be measured: {absent[0]}")
            # After every round: an interrupted sitting keeps its whole rounds.
            run = write(args, data, recipe, timed, lines, bool(check))
    arms.show(run)
    if not check:
        print("MXNet is not installed: the peers' losses were not compared with ours")


def write(
    args: argparse.Namespace,
    data: datasets.ImageData,
    recipe: dict,
    timed: Sequence[Arm],
    lines: Sequence[ArmSample | ArmAbsent],
    checked: bool,
) -> Run:
    """Write the record of the rounds that are measured."""
    name = f"{args.name}-sample" if data.name.endswith("-sample") else args.name
    return arms.record(
        args.out / f"{name}-{args.kind}{max(args.counts)}.jsonl",
        timed,
        lines,
        work=f"an epoch of LeNet on {labels.DATA_NAMES.get(data.name, data.name)}, "
        f"{len(data.y_train):,} images, batch {args.global_batch_size}",
        dataset=data.name,
        dataset_sha256=data.sha256,
        synthetic=data.synthetic,
        seed=args.seed,
        settings={**recipe, "threads": args.threads, **data.sizes},
        first_losses_checked=checked,
        **(
            arms.gpu_fields(range(max(args.counts)), timed)
            if args.kind == "gpu"
            else {}
        ),
    )


if __name__ == "__main__":
    try:
        main()
    except D2lparError as error:
        sys.exit(f"peers.py: {error}")
