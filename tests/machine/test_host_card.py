"""The card of this machine's host, read another way, and of systems that are faked."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from d2lpar.machine import host_card


def cpuinfo():
    return Path("/proc/cpuinfo").read_text(encoding="utf-8")


def test_the_host_is_what_proc_says():
    card = host_card.cpu_card()
    blocks = [b for b in cpuinfo().split("\n\n") if re.search("^processor", b, re.M)]
    assert card.logical_cores == os.cpu_count() == len(blocks)
    assert card.model in cpuinfo()
    assert 1 <= card.usable_cores <= len(os.sched_getaffinity(0))
    meminfo = Path("/proc/meminfo").read_text(encoding="utf-8")
    total = re.search(r"^MemTotal: +(\d+) kB$", meminfo, re.M)
    assert card.memory_total == 1024 * int(total[1])
    assert 0 < card.memory_free < card.memory_total
    for name in card.vector_extensions:
        assert re.search(rf"^(flags|Features)\s*:.*\b{name}\b", cpuinfo(), re.M)


def test_cores_and_caches_are_lscpus():
    try:
        done = subprocess.run(
            ["lscpu", "-B", "-J"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no lscpu here that knows -B and -J")
    rows, facts = json.loads(done.stdout)["lscpu"], {}
    while rows:
        row = rows.pop()
        facts[row["field"].rstrip(":")] = row["data"]
        rows += row.get("children", [])
    card = host_card.cpu_card()
    sockets, each = int(facts["Socket(s)"]), int(facts["Core(s) per socket"])
    assert (card.sockets, card.physical_cores) == (sockets, sockets * each)
    sizes = {}
    for cache in card.caches:
        sizes[cache.name] = sizes.get(cache.name, 0) + cache.size * cache.count
    told = {k.split()[0]: int(v.split()[0]) for k, v in facts.items() if "cache" in k}
    told = {name: size for name, size in told.items() if name in sizes}
    assert told and {name: sizes[name] for name in told} == told


def fake_cpus(root, layout):
    """Folders as in /sys/devices/system/cpu: (socket, siblings, size of L2) a core."""
    for k, (socket, siblings, size) in enumerate(layout):
        topology, index = root / f"cpu{k}/topology", root / f"cpu{k}/cache/index2"
        topology.mkdir(parents=True)
        index.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{socket}\n")
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
        texts = {
            "level": 2,
            "type": "Unified",
            "size": size,
            "shared_cpu_map": siblings,
        }
        for name, text in texts.items():
            (index / name).write_text(f"{text}\n")
    (root / "cpufreq").mkdir()


def test_hyper_threads_and_unequal_cores(tmp_path):
    """Two sockets; a core with two threads and 2 MiB, and two with one and 512 KiB."""
    layout = [(0, "0-1", "2M"), (0, "0-1", "2M"), (0, "2", "512K"), (1, "3", "512K")]
    fake_cpus(tmp_path, layout)
    cores = host_card.core_of_cpu(tmp_path)
    assert cores[0] == cores[1] and len(set(cores.values())) == 3
    small, large = host_card.caches(tmp_path)
    assert small == host_card.Cache("L2", 512 * 1024, 2, 1)
    assert large == host_card.Cache("L2", 2 * 2**20, 1, 2)


def test_a_system_that_tells_nothing(tmp_path):
    assert host_card.core_of_cpu(tmp_path) == {} and host_card.caches(tmp_path) == ()
    assert host_card.vector_extensions("") == ((), None)
    assert host_card.container_memory(tmp_path / "none", tmp_path) == (None, 0)


@pytest.mark.parametrize(
    ("flags", "bits"),
    [
        ("fpu sse2", 128),
        ("sse2 avx fma avx2 avx_vnni", 256),
        ("sse2 avx avx512f avx512_bf16 fma", 512),
        ("fp asimd evtstrm", 128),
    ],
)
def test_width_of_vectors(flags, bits):
    found, width = host_card.vector_extensions(flags)
    assert width == bits and set(found) <= set(flags.split())


def container(tmp_path, *files):
    for name, text in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return host_card.container_memory(tmp_path / "groups", tmp_path)


def test_a_containers_limit_of_version_2(tmp_path):
    """The tightest of all levels; the cache of files gives way."""
    found = container(
        tmp_path,
        ("groups", "0::/user/job"),
        ("user/job/memory.max", "max"),
        ("user/job/memory.current", 10),
        ("user/memory.max", 1000),
        ("user/memory.current", 700),
        ("user/memory.stat", "anon 300\ninactive_file 400\nactive_file 5"),
        ("memory.max", 5000),
        ("memory.current", 800),
    )
    assert found == (1000, 300)


def test_a_containers_limit_of_version_1(tmp_path):
    lines = "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n"
    found = container(
        tmp_path,
        ("groups", lines),
        ("memory/memory.limit_in_bytes", 2**63 - 4096),
        ("memory/memory.usage_in_bytes", 900),
        ("memory/docker/abc/memory.limit_in_bytes", 600),
        ("memory/docker/abc/memory.usage_in_bytes", 250),
        ("memory/docker/abc/memory.stat", "cache 9\ntotal_inactive_file 50"),
    )
    assert found == (600, 200)


def test_free_memory_stays_below_a_containers_limit(monkeypatch):
    total, free, limit = host_card.host_memory()
    monkeypatch.setattr(host_card, "container_memory", lambda: (2**20, 2**19))
    assert host_card.host_memory() == (total, 2**19, 2**20)
    monkeypatch.setattr(host_card, "container_memory", lambda: (2**60, 2**19))
    assert host_card.host_memory()[2] is None  # more than there is: no limit
    assert 0 < free <= total and (limit is None or limit < total)
