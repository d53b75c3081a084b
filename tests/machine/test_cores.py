"""Cores, and the threads of a CPU context."""

import os

import pytest

from d2lpar.machine import cores


@pytest.mark.parametrize(
    ("value", "threads"),
    [("4", 4), ("4,2", 4), ("", None), ("0", None), ("-2", None), ("many", None)],
)
def test_omp_threads(monkeypatch, value, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert cores.omp_threads() == threads


def test_threads_per_context_share_the_cores_out(monkeypatch):
    monkeypatch.setattr(cores, "USER_THREADS", None)
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    shares = {n: cores.threads_per_context(n) for n in (1, 2, 3, 8, 16)}
    assert shares == {1: 8, 2: 4, 3: 2, 8: 1, 16: 1}


def test_threads_per_context_are_the_persons_where_set(monkeypatch):
    monkeypatch.setattr(cores, "USER_THREADS", 3)
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    assert [cores.threads_per_context(n) for n in (1, 2, 16)] == [3, 3, 3]


def test_usable_cores():
    assert 1 <= cores.usable_cores() <= os.cpu_count()


def test_cpu_model_says_something():
    assert cores.cpu_model().strip()
