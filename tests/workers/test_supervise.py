"""The supervisor: who dies, who is ended, what starts again, and that nothing stays.

The roles here are shell scripts of a line or two, so that what is tested is the
supervisor alone; tests/workers/test_faults.py kills real ones.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from d2lpar.cli import main
from d2lpar.errors import SettingError
from d2lpar.workers import plan as workers_plan
from d2lpar.workers import supervise
from d2lpar.workers.supervise import LaunchError

ROOT = Path(main.__file__).parents[2]
# Each line: what a role does at its start number $N, counted in a file.
FAKE = """#!/bin/sh
name=$DMLC_ROLE$D2LPAR_WORKER
[ "$3" = --about ] && {{ {about}; }}
echo x >> {folder}/$name.starts; N=$(wc -l < {folder}/$name.starts)
echo $$ > {folder}/$name.pid
case $name in
    scheduler) {scheduler} ;;
    server) {server} ;;
    worker0) {worker0} ;;
    worker1) {worker1} ;;
esac
"""
WAIT = "exec cat"  # to the end of its standard input, as a role does


@pytest.fixture
def fake(tmp_path):
    """Write the roles' script; a function that launches them."""

    def fake(hosts=(), timeout=30, max_restarts=3, port=None, **does):
        script = tmp_path / "fake"
        words = {"scheduler": WAIT, "server": WAIT, "worker0": "exit 0",
                 "worker1": "exit 0", "about": "exit 9", **does}  # fmt: skip
        script.write_text(FAKE.format(folder=tmp_path, **words))
        script.chmod(0o755)
        shown = []
        plan = partial(_plan, hosts=[workers_plan.Host(h) for h in hosts])
        how = supervise.Launch(
            str(tmp_path),
            lambda role, line, bar: shown.append((role.name, line, bar)),
            str(script),
            ssh=str(tmp_path / "ssh"),
            timeout=timeout,
            logs=tmp_path / "logs",
        )
        supervise.launch(
            plan, how, address="127.0.0.1", port=port, max_restarts=max_restarts
        )
        return shown

    return fake


def _plan(port, hosts=()):
    return workers_plan.plan(2, 1, ["run", "toy"], port=port, hosts=hosts)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(supervise, "SECONDS_TO_FINISH", 0.2)


def starts(tmp_path, name):
    return (tmp_path / f"{name}.starts").read_text().count("x")


def is_gone(tmp_path, name):
    return not psutil.pid_exists(int((tmp_path / f"{name}.pid").read_text()))


def test_a_complete_training_is_the_end(fake, tmp_path):
    shown = fake(worker0="echo epoch 1; echo done")
    assert ("worker 0", "epoch 1", False) in shown
    assert (tmp_path / "logs" / "worker-0.log").read_text() == "epoch 1\ndone\n"
    for name in ("scheduler", "server", "worker0", "worker1"):
        assert starts(tmp_path, name) == 1 and is_gone(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "role"),
    [("scheduler", "scheduler"), ("server", "server 0"), ("worker1", "worker 1")],
)
def test_where_one_is_killed_all_start_again(fake, tmp_path, caplog, name, role):
    wait_once = f"if [ $N = 1 ]; then {WAIT}; fi"
    does = {"worker0": wait_once, "worker1": wait_once}
    dies_once = "if [ $N = 1 ]; then echo last words; kill -9 $$; fi"
    does[name] = f"{dies_once}; {does.get(name, WAIT)}"
    with caplog.at_level(logging.WARNING):
        fake(**does)
    assert f"{role} was killed (signal 9); it wrote last:\n    last words" in (
        caplog.text
    )
    assert "restart 1 of 3 in 0.5 s" in caplog.text
    assert all(starts(tmp_path, n) == 2 for n in ("scheduler", "server", "worker0"))


def test_what_starts_again_knows_since_when(fake, tmp_path):
    before = time.time()
    fake(worker0="[ $N = 1 ] && exit 3; echo $D2LPAR_RESUME_SINCE > since")
    assert before <= float((tmp_path / "since").read_text()) <= time.time()


def test_it_gives_up(fake, tmp_path):
    with pytest.raises(LaunchError, match=r"not complete after 1 restarts: worker 1 "
                       r"ended with status 7; it wrote last:\n    oh"):  # fmt: skip
        fake(worker1="echo oh; exit 7", worker0=WAIT, max_restarts=1)
    assert starts(tmp_path, "worker1") == 2 and is_gone(tmp_path, "worker0")


def test_what_will_be_wrong_again_is_not_tried_again(fake, tmp_path):
    wrong = "echo 'd2lpar: lr 0: write another'; exit 2"
    with pytest.raises(SettingError, match=r"^worker 1: lr 0: write another$"):
        fake(worker1=wrong, worker0=WAIT)
    assert starts(tmp_path, "worker1") == 1 and is_gone(tmp_path, "worker0")


def test_workers_that_make_no_step_hang(fake, tmp_path):
    with pytest.raises(LaunchError, match="hangs, as all workers: no step for 1 s"):
        fake(worker0=WAIT, worker1=WAIT, timeout=1, max_restarts=0)
    assert is_gone(tmp_path, "worker0") and is_gone(tmp_path, "scheduler")


@pytest.mark.parametrize(
    ("node", "who"), [(9, "worker 1"), (11, "worker 0"), (8, "server 0")]
)
def test_who_sends_no_heartbeat_is_named(fake, tmp_path, node, who):
    """The scheduler knows ps-lite's number; each worker has written its own."""
    does = {
        f"worker{k}": f'echo "ps-lite\'s node {11 - 2 * k}"; echo hi {k}; {WAIT}'
        for k in range(2)
    }
    silent = f"sleep 0.5; echo no heartbeat of node {node} for 8 s; exit {node}"
    with pytest.raises(LaunchError) as error:
        fake(**does, scheduler=silent, max_restarts=0)
    wrote = f"\n    hi {who[-1]}" if who.startswith("worker") else " nothing"
    assert str(error.value) == (
        f"not complete after 0 restarts: {who} is silent: no heartbeat of node {node} "
        f"for 8 s; it wrote last:{wrote}"
    )
    assert is_gone(tmp_path, "worker0") and is_gone(tmp_path, "server")


def test_a_sign_of_life_is_no_text(fake, tmp_path):
    """One worker's is enough: in step they all are. It lasts longer than the limit."""
    beat = r"for i in 1 2 3 4; do printf 'a\000'; sleep 0.5; done; echo"
    fake(worker0=beat, worker1="sleep 2", timeout=1, max_restarts=0)
    assert (tmp_path / "logs" / "worker-0.log").read_text() == "aaaa\n"


def test_a_bar_is_told_from_lines(fake):
    shown = fake(worker0=r"printf '10%%\r20%%\r\nresult\n'")
    assert [(line, bar) for name, line, bar in shown if name == "worker 0"] == [
        ("10%", True), ("20%", True), ("result", False),
    ]  # fmt: skip


def test_a_taken_port(fake):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"--port {port}: not available on "
                           "127.0.0.1 .Address already in use.; leave"):  # fmt: skip
            fake(port=port)


# Hosts: the ssh here is a script, too


@pytest.fixture
def ssh(tmp_path):
    def ssh(text):
        (tmp_path / "ssh").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "ssh").chmod(0o755)

    return ssh


ABOUT = """echo '{{"package": "{}", "time": 1.5}}'; exit 0"""


def test_roles_run_on_the_hosts(fake, ssh, tmp_path):
    ssh('host=$1; shift; echo $host >> ${0%/*}/hosts; exec sh -c "$*"')
    about = ABOUT.format(supervise.package_digest())
    shown = fake(
        hosts=["a", "b"], about=about, server="echo at $DMLC_PS_ROOT_URI; exec cat"
    )
    assert sorted((tmp_path / "hosts").read_text().split()) == ["a"] * 3 + ["b"] * 2
    assert ("server 0", "at 127.0.0.1", False) in shown


@pytest.mark.parametrize(
    ("does", "about", "words"),
    [
        ("echo no route to host >&2; exit 255", "exit 9",
         "host a: cannot be used through ssh: no route to host"),
        ('shift; exec sh -c "$*"', ABOUT.format("0" * 64),
         r"host a has another package \(000000000000\) than this one"),
    ],
)  # fmt: skip
def test_hosts_that_cannot_take_part(fake, ssh, tmp_path, does, about, words):
    ssh(does)
    with pytest.raises(SettingError, match=words):
        fake(hosts=["a"], about=about)
    assert not (tmp_path / "scheduler.starts").exists()


# The end of the launcher itself


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_however_the_launcher_ends_nothing_stays(tmp_path, number):
    script = tmp_path / "fake"
    does = dict.fromkeys(("scheduler", "server", "worker0", "worker1"), WAIT)
    script.write_text(FAKE.format(folder=tmp_path, about="exit 9", **does))
    script.chmod(0o755)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "d2lpar", "launch", f"--python={script}", "--",
         "run", "multiple_gpus_concise"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    names = ("scheduler", "server", "worker0", "worker1")
    pids = [tmp_path / f"{name}.pid" for name in names]
    _until(lambda: all(p.exists() and p.read_text().strip() for p in pids))
    launcher.send_signal(number)
    _, stderr = launcher.communicate(timeout=10)
    _until(lambda: all(is_gone(tmp_path, name) for name in names))
    assert all(is_gone(tmp_path, name) for name in names)
    if number == signal.SIGKILL:
        assert launcher.returncode == -number
    else:
        assert launcher.returncode == 130 and "interrupted" in stderr


def _until(what, seconds=10):
    limit = time.monotonic() + seconds
    while not what() and time.monotonic() < limit:
        time.sleep(0.02)
