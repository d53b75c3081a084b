"""Several workers that train one network through MXNet's parameter server (ps-lite).

One process a worker, numbered 0, 1, ... by the launcher (:mod:`d2lpar.workers.supervise`), each
with devices of its own. All go through the same seeded sequence of global batches; each
takes its contiguous part, splits it over its devices, and the servers sum what the
workers push. Every worker makes the same number of steps: without a sample in the last
partial batch it contributes zeros. All communication is MXNet's own
``kvstore('dist_sync')``; see d2l, "Parameter Servers".
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy

from d2lpar.errors import SettingError
from d2lpar.records.kinds import Header

log = logging.getLogger("d2lpar")

KVSTORES = ("dist_sync", "dist_async")
FIRST_OWN_KEY = 1_000_000  # Gluon's trainer numbers its parameters from 0

# What to do at every step of a worker; the measuring process tells that it lives.
on_step: Callable[[], object] = lambda: None  # noqa: E731


@dataclass(frozen=True)
class Place:
    """Which worker this process is: `number` of `count`, and what it shares through.

    `kvstore` is one of :data:`KVSTORES`; `threshold` that of 2-bit gradient compression
    (None: gradients as they are).
    """

    number: int
    count: int
    servers: int
    kvstore: str = "dist_sync"
    threshold: float | None = None

    @property
    def launched_by(self) -> str:
        """The beginning of the command that started it, up to "run ..."."""
        words = f"d2lpar launch --workers {self.count} --servers {self.servers} "
        words += f"--kvstore {self.kvstore} " * (self.kvstore != KVSTORES[0])
        if self.threshold is not None:
            words += f"--compress {self.threshold:g} "
        return words + "-- "

    @property
    def variant(self) -> str:
        """What a record's name says of how it was shared: "", "async" or "2bit"."""
        parts = [self.kvstore.removeprefix("dist_")] * (self.kvstore != KVSTORES[0])
        return "-".join(parts + ["2bit"] * (self.threshold is not None))


def place() -> Place | None:
    """This process's place, from the launcher's environment; None if it has none."""
    if os.environ.get("DMLC_ROLE") != "worker" or "D2LPAR_WORKER" not in os.environ:
        return None
    threshold = os.environ.get("D2LPAR_THRESHOLD")
    return Place(
        int(os.environ["D2LPAR_WORKER"]),
        int(os.environ["DMLC_NUM_WORKER"]),
        int(os.environ["DMLC_NUM_SERVER"]),
        os.environ.get("D2LPAR_KVSTORE", KVSTORES[0]),
        float(threshold) if threshold else None,
    )


def span(n: int, number: int, count: int) -> slice:
    """The contiguous part of range(n) that is worker `number`'s, of `count` workers.

    Parts differ by at most one; with n < count the last ones are empty.

    >>> [span(10, k, 3) for k in range(3)]
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    size, extra = divmod(n, count)
    start = number * size + min(number, extra)
    return slice(start, start + size + (number < extra))


def package_digest() -> str:
    """SHA-256 of this package's source and of the versions of MXNet and NumPy."""
    from importlib import metadata

    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    for name in ("mxnet", "mxnet-cu112", "numpy"):
        try:
            digest.update(f"{name} {metadata.version(name)}".encode())
        except metadata.PackageNotFoundError:
            continue
    return digest.hexdigest()


def node(kind: str, rank: int) -> int:
    """ps-lite's number of the "server" or "worker" that it gave this rank.

    Not the launcher's number: ps-lite ranks them by address and port.
    """
    return {"server": 8, "worker": 9}[kind] + 2 * rank


def announcement(number: int) -> str:
    """What a worker writes when it has its number; the launcher reads it."""
    return f"ps-lite's node {number}"


class Workers:
    """This worker among the others, connected to them.

    Waits until the scheduler, the servers and the other workers are there.
    """

    def __init__(self, place: Place) -> None:
        from d2lpar._mxnet import mx

        self.place, self.number, self.count = place, place.number, place.count
        self.kvstore = mx.kv.create(place.kvstore)
        log.warning("%s", announcement(node("worker", self.kvstore.rank)))
        self._keys: dict[tuple, int] = {}  # by shape: what totals are summed under
        self._divisor: int | None = None
        # MXNet orders a push after the last pull of a key, but for the first ones: a
        # gradient may be summed before a slow worker has pulled the parameter.
        self.kvstore.broadcast = self._broadcast
        if place.threshold is not None:
            self.kvstore.pushpull = self._push_then_pull  # it refuses to compress

    def _broadcast(self, key, value, out, priority: int = 0) -> None:
        type(self.kvstore).broadcast(self.kvstore, key, value, out, priority)
        for array in out if isinstance(out, (list, tuple)) else [out]:
            array.wait_to_read()

    def _push_then_pull(self, key, value, out=None, priority: int = 0) -> None:
        self.kvstore.push(key, value, priority)
        self.kvstore.pull(key, value if out is None else out, priority)

    @property
    def synchronous(self) -> bool:
        """Whether the servers sum what all push, rather than update with each push."""
        return self.place.kvstore == "dist_sync"

    @property
    def sums(self) -> bool:
        """Whether what is pushed is summed exactly: else only gradients are shared."""
        return self.place.variant == ""

    def step(self) -> None:
        """Tell who watches that this worker is getting on."""
        on_step()

    def part(self, *arrays) -> tuple:
        """This worker's rows of arrays of equal length; there may be none."""
        mine = span(len(arrays[0]), self.number, self.count)
        return tuple(array[mine] for array in arrays)

    def batch_part(self, X, y) -> tuple:
        """This worker's part of a global batch; a step, for who watches."""
        self.step()
        return self.part(X, y)

    def check_batch(self, global_batch_size: int) -> None:
        """Raise :class:`SettingError` where a batch has not a sample for each."""
        if global_batch_size < self.count:
            raise SettingError(
                f"global-batch-size {global_batch_size}: fewer samples than the "
                f"{self.count} workers; use a larger batch or fewer workers"
            )

    def trainer(self, params, lr: float):
        """A Gluon trainer that sums the gradients of all workers on the servers.

        Each worker updates its own replicas then, so that all hold the same parameters.
        In "dist_async" there is no such sum: the servers update.
        """
        from d2lpar._mxnet import gluon

        threshold = self.place.threshold
        return gluon.Trainer(
            params,
            "sgd",
            {"learning_rate": lr},
            kvstore=self.kvstore,
            update_on_kvstore=not self.synchronous,
            compression_params=threshold and {"type": "2bit", "threshold": threshold},
        )

    def divisor(self, batch_size: int) -> int:
        """What a step divides the sum of gradients by: the global batch's size.

        The servers of "dist_async" are told once: a last, smaller batch counts less.
        """
        if self.synchronous or self._divisor is None:
            self._divisor = batch_size
        return self._divisor

    def leave(self) -> None:
        """Wait for the other workers, and tell the servers that it was the end."""
        from d2lpar._mxnet import mx

        handle, self.kvstore.handle = self.kvstore.handle, None
        mx.base.check_call(mx.base._LIB.MXKVStoreFree(handle))

    def total(self, array: numpy.ndarray) -> numpy.ndarray:
        """The sum of all workers' arrays (same shape, float64), the same bits on each.

        Raises :class:`SettingError` for "dist_async", and once a trainer compresses.
        """
        array = numpy.ascontiguousarray(array, numpy.float64)
        every = self._all(array.reshape(-1).view(numpy.uint16)).view(numpy.float64)
        return every.sum(axis=0).reshape(array.shape)

    def gather(self, content: bytes) -> list[bytes]:
        """What each worker has given, in order, on each of them."""
        lengths = numpy.zeros(self.count)
        lengths[self.number] = len(content)
        lengths = self.total(lengths).astype(int)
        padded = content.ljust(lengths.max() + lengths.max() % 2, b"\0")
        rows = self._all(numpy.frombuffer(padded, numpy.uint16))
        return [row.tobytes()[:length] for row, length in zip(rows, lengths)]

    def _all(self, numbers: numpy.ndarray) -> numpy.ndarray:
        """The uint16 of all workers, (n,) each, as (workers, n).

        Servers sum in float32. So each worker fills a row of its own, and zeros for the
        others: these sums are exact.
        """
        from d2lpar._mxnet import np

        self.step()
        if not self.sums and (not self.synchronous or self._divisor is not None):
            raise SettingError(
                f"{self.place.variant}: this work needs sums; leave --kvstore and "
                "--compress out"
            )
        rows = numpy.zeros((self.count, max(1, len(numbers))), numpy.float32)
        rows[self.number, : len(numbers)] = numbers
        value = np.array(rows, dtype="float32")
        key = self._keys.get(value.shape)
        if key is None:
            key = self._keys[value.shape] = FIRST_OWN_KEY + len(self._keys)
            self.kvstore.init(key, np.zeros_like(value))
        self.kvstore.pushpull(key, value, out=value)
        return value.asnumpy().astype(numpy.uint16)[:, : len(numbers)]

    def check_same(self, **facts: str) -> None:
        """Raise :class:`SettingError` where a worker has another package, other data...

        `facts` are words and this worker's value, compared with those of worker 0.
        """
        if not self.synchronous:
            return
        said = [json.loads(text) for text in self.gather(json.dumps(facts).encode())]
        for name, value in said[0].items():
            for number, other in enumerate(said[1:], 1):
                if other[name] != value:
                    raise SettingError(
                        f"worker {number} has another {name} ({other[name][:12]}) than "
                        f"worker 0 ({value[:12]}): give all hosts the same"
                    )

    def state_of_first(self, state):
        """Worker 0's training state, on every worker: only it reads a checkpoint.

        In "dist_async" each worker has read it, and goes on from its own.
        """
        from safetensors.numpy import load, save

        if not self.synchronous:
            return state
        content = b""
        if self.number == 0:
            arrays = {n: numpy.ascontiguousarray(a) for n, a in state.tensors().items()}
            facts = json.dumps(state.facts()).encode()
            content = len(facts).to_bytes(8, "little") + facts + save(arrays)
        content = self.gather(content)[0]
        end = 8 + int.from_bytes(content[:8], "little")
        return type(state).restore(load(content[end:]), json.loads(content[8:end]))

    def test_part(self, X, y) -> tuple:
        """This worker's part of the test set; all of it where nothing can be summed."""
        if len(y) < self.count:
            raise SettingError(
                f"{len(y)} test images: fewer than the {self.count} workers"
            )
        return self.part(X, y) if self.sums else (X, y)

    def epoch_means(self, train_loss: float, test_acc: float, share: float) -> tuple:
        """Loss and accuracy of all, from each worker's sums.

        `train_loss` is the sum over this worker's samples divided by the number of all;
        `test_acc` that on its part of the test set, `share` of it. Where nothing can be
        summed, this worker's samples stand for all.
        """
        if not self.sums:
            return train_loss * self.count, test_acc
        return tuple(self.total(numpy.array([train_loss, test_acc * share])).tolist())


def with_traffic(records: Iterator) -> Iterator:
    """Epochs' records, each with the `wire_bytes` that were sent since the last one."""
    before = bytes_sent()
    for record in records:
        now = bytes_sent()
        if None not in (before, now):
            extra = {**record.extra, "wire_bytes": now - before}
            record = replace(record, extra=extra)
        yield record
        before = bytes_sent()


def joined(header: Header, train: Callable) -> tuple[Header, Workers]:
    """The record's header as it is with other workers, and the connection to them."""
    if "workers" not in inspect.signature(train).parameters:
        raise SettingError(
            f"launch: {header.chapter} is not shared among workers; "
            "multiple_machines, multiple_gpus_concise and least_squares_large are"
        )
    group = Workers(place())
    group.check_same(
        package=package_digest(),
        data=header.dataset_sha256,
        seed=str(header.seed),
        settings=json.dumps(header.settings, sort_keys=True),
    )
    names = [label.split(" ", 1) for label in header.devices]
    labels = header.devices
    if group.count > 1:  # "cpu(0)@1 (1 thread of 2 cores)": of worker 1
        labels = [
            " ".join([f"{name}@{k}", *rest])
            for k in range(group.count)
            for name, *rest in names
        ]
    header = replace(
        header,
        num_devices=len(labels),
        devices=labels,
        variant=group.place.variant,
        command=group.place.launched_by + header.command.removeprefix("d2lpar "),
        workers=group.count,
        servers=group.place.servers,
    )
    return header, group


def resume_after_restart(resume: str | None, folder: Path) -> str | None:
    """What to resume: "last", where this launch has written a checkpoint already."""
    since = float(os.environ.get("D2LPAR_RESUME_SINCE", "inf"))
    written = (path.stat().st_mtime for path in folder.glob("[!.]*.safetensors"))
    return "last" if any(time_ >= since for time_ in written) else resume


def bytes_sent() -> int | None:
    """Bytes that the interface between the roles has sent so far, by all processes.

    On loopback that is everything, between hosts what this host has sent. None where
    no interface is named.
    """
    import psutil

    counters = psutil.net_io_counters(pernic=True)
    found = counters.get(os.environ.get("DMLC_INTERFACE", ""))
    return None if found is None else found.bytes_sent


def show_life() -> None:
    """Tell the supervisor that this worker makes its steps: no text, a sign of life."""
    sys.stderr.write("\0")
    sys.stderr.flush()


def at_most_every(seconds: float, call: Callable[[], object]) -> Callable[[], object]:
    """`call`, left out where the last one was less than `seconds` ago."""
    last = -seconds

    def limited() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            call()

    return limited
