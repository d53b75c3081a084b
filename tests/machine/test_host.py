"""The host's card and cores: against /proc, lscpu of several kinds, and containers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from d2lpar.machine import cards, host


@pytest.fixture
def lscpu(monkeypatch, tmp_path):
    """Put a program of that name first on the path; it prints this text."""

    def install(text, status=0):
        (tmp_path / "out").write_text(text)
        program = tmp_path / "lscpu"
        program.write_text(f"#!/bin/sh\ncat '{tmp_path}/out'\nexit {status}\n")
        program.chmod(0o755)
        host.lscpu.cache_clear()

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    host.lscpu.cache_clear()
    yield install
    host.lscpu.cache_clear()


def test_the_host_is_what_proc_says():
    card = cards.cpu_card()
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert card.logical_cores == len(re.findall("^processor", cpuinfo, re.M))
    assert card.physical_cores <= card.logical_cores
    assert 1 <= card.usable_cores <= len(os.sched_getaffinity(0))
    meminfo = Path("/proc/meminfo").read_text(encoding="utf-8")
    total = re.search(r"^MemTotal: +(\d+) kB$", meminfo, re.M)
    assert card.memory_total == 1024 * int(total[1])
    assert 0 < card.memory_free < card.memory_total
    for name in card.vector_extensions:
        assert re.search(rf"^(flags|Features)\s*:.*\b{name}\b", cpuinfo, re.M)


def entry(field, data, *children):
    return {"field": field, "data": data, "children": list(children)}


@pytest.mark.parametrize("form", ["flat", "nested"])
def test_lscpu_of_a_host(lscpu, form):
    """Since util-linux 2.37 entries may be nested, caches with shorter names."""
    rows = [
        entry("Model name:", "Xeon", entry("Socket(s):", "2")),
        entry("Flags:", "fpu sse2 fma avx2"),
        entry("Caches (sum of all):", None, entry("L2:", "8 MiB (4 instances)")),
    ]
    if form == "flat":
        names = ("Model name:", "Socket(s):", "Flags:", "L2 cache:")
        values = ("Xeon", "2", "fpu sse2 fma avx2", "8 MiB (4 instances)")
        rows = [{"field": f, "data": v} for f, v in zip(names, values)]
    lscpu(json.dumps({"lscpu": rows}))
    card = cards.cpu_card()
    assert (card.model, card.sockets) == ("Xeon", 2)
    assert card.caches == {"L2": "8 MiB (4 instances)"}
    assert (card.vector_extensions, card.vector_bits) == (("sse2", "avx2", "fma"), 256)


def test_no_lscpu(lscpu, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    card = cards.cpu_card()
    assert card.model and card.logical_cores == os.cpu_count()
    assert (card.sockets, card.caches, card.vector_bits) == (None, {}, None)
    assert "None" not in cards.as_text(cards.Machine(card, ()))


def container(tmp_path, group, **files):
    """What a process in this control group has, where folder__file has a text."""
    (tmp_path / "group").write_text(group)
    for name, text in files.items():
        path = tmp_path.joinpath(*name.replace("memory_", "memory.").split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return host.container_memory(tmp_path / "group", tmp_path)


def test_a_limit_of_a_group_around_ours_counts_too(tmp_path):
    limit = container(
        tmp_path, "0::/job/step\n",
        job__step__memory_max="max", job__step__memory_current=10,
        job__step__memory_stat="inactive_file 0",
        job__memory_max=1000, job__memory_current=100,
        job__memory_stat="inactive_file 0",
        memory_max=5000, memory_current=4999, memory_stat="inactive_file 99",
    )  # fmt: skip
    # It leaves less than that of the job, even with what the kernel caches.
    assert limit == (5000, 4900)


def test_no_limit(tmp_path):
    assert host.container_memory(tmp_path / "none", tmp_path) == (None, 0)
    assert container(tmp_path, "0::/job\n", job__memory_max="max") == (None, 0)
    assert container(tmp_path, "4:memory:/docker/abc\n") == (None, 0)


def test_free_memory_stays_below_a_containers_limit(monkeypatch):
    total = host.host_memory().total
    monkeypatch.setattr(host, "container_memory", lambda: (2**20, 2**19))
    assert host.host_memory() == (total, 2**19, 2**20)
    monkeypatch.setattr(host, "container_memory", lambda: (2**60, 2**19))
    assert host.host_memory().limit is None  # more than there is


def test_contexts_share_the_cores_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(host, "set_by_us", set())
    monkeypatch.setattr(host, "usable_cores", lambda: 8)
    assert [host.threads_per_context(n) for n in (1, 2, 3, 16)] == [8, 4, 2, 1]
    host.set_defaults({"OMP_NUM_THREADS": "1"})  # as before MXNet's import
    assert host.omp_threads() == 1 and host.user_threads() is None
    assert host.threads_per_context(2) == 4
    monkeypatch.setattr(host, "set_by_us", set())
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    host.set_defaults({"OMP_NUM_THREADS": "1"})
    assert [host.threads_per_context(n) for n in (1, 2, 16)] == [3, 3, 3]


def test_cores_outside_of_the_affinity_are_not_usable():
    """As in a container that was given one of many cores."""
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
        "from d2lpar.machine.host import usable_cores; print(usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr
