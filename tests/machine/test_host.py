"""Variables, cores and memory of the host, within the limits of containers."""

from pathlib import Path

import pytest

from d2lpar.errors import SettingError
from d2lpar.machine import host
from d2lpar.machine.host import WHOLE_NUMBERS


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_a_variable_that_would_crash_mxnet_is_named(name, monkeypatch):
    for value in ("0", "1.5", "2,1"):
        monkeypatch.setenv(name, value)
        with pytest.raises(SettingError, match=f"^{name} '{value}': write one whole"):
            host.check_environment()
    for value in ("", " 2 "):
        monkeypatch.setenv(name, value)
        host.check_environment()


def test_threads_are_the_users_or_else_nobodys(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(host, "set_by_us", set())
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda process: {0})
    assert host.usable_cores() == 1  # as in a container that was given one of many
    host.set_defaults({"OMP_NUM_THREADS": "1"})  # as before MXNet's import
    assert host.omp_threads() == 1 and host.user_threads() is None
    monkeypatch.setattr(host, "set_by_us", set())
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    host.set_defaults({"OMP_NUM_THREADS": "1"})
    assert host.user_threads() == 3


def test_memory_limits_of_a_container_and_of_groups_around_it(tmp_path):
    def limit(group, maximum, current, cached):
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(f"{maximum}\n")
        (group / "memory.current").write_text(f"{current}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")

    (tmp_path / "group").write_text("0::/job/step\n")
    assert host.container_memory(tmp_path / "group", tmp_path) == []
    limit(tmp_path, 5000, 4999, 99)
    limit(tmp_path / "job", 1000, 100, 0)
    limit(tmp_path / "job" / "step", "max", 10, 0)
    found = host.container_memory(tmp_path / "group", tmp_path)
    assert found == [(1000, 100), (5000, 4900)]  # what is cached gives way
    assert host.container_memory(tmp_path / "none", tmp_path) == []


def test_a_containers_limit_is_its_memory(monkeypatch):
    total, _ = host.host_memory()
    limits = [(2**30, 2**20), (2**60, 2**20)]  # the second is more than there is
    monkeypatch.setattr(host, "container_memory", lambda: limits)
    assert host.host_memory() == (2**30, 2**30 - 2**20)
    monkeypatch.setattr(host, "container_memory", lambda: limits[1:])
    assert host.host_memory()[0] == total


def test_what_only_linux_has_is_not_needed(monkeypatch):
    """As on a Mac, on which nothing was run: no /proc and no control groups."""

    def nothing(path, *args, **how):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "read_text", nothing)
    monkeypatch.setattr(host, "cpuinfo", host.cpuinfo.__wrapped__)
    assert host.cpuinfo() == {} and host.container_memory() == [] and host.cpu_model()
