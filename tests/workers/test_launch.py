"""The plan of a launch, what it refuses, and the supervisor: who dies, who restarts.

The supervised roles are shell commands of a line; test_faults.py kills real ones.
"""

import logging
import os
import time

import psutil
import pytest
from click.testing import CliRunner

from d2lpar.cli import main
from d2lpar.errors import SettingError
from d2lpar.workers import plan, role, supervisor
from d2lpar.workers.plan import Host

RUN = ["run", "multiple_gpus_concise"]


# The plan


def test_servers_and_workers_go_over_the_hosts_in_turn(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# the room\nme@ana.lan eth1\n[fe80::1%eth0]  # ours\n\n")
    hosts = plan.read_hosts(file, "eth0")
    ana, bo = "me@ana.lan", "[fe80::1%eth0]"
    assert hosts == [Host(ana, "eth1"), Host(bo, "eth0")]
    planned = plan.plan(3, 1, RUN, interface="wlan0", hosts=hosts)
    where = {each.name: each.host.name for each in planned}
    assert where == {
        "scheduler": "", "server 0": ana,
        "worker 0": ana, "worker 1": bo, "worker 2": ana,
    }  # fmt: skip
    interfaces = [each.environment["DMLC_INTERFACE"] for each in planned]
    assert interfaces == ["wlan0", "eth1", "eth1", "eth0", "eth1"]


@pytest.mark.parametrize(
    ("workers", "devices", "words"),
    [
        (3, ["cpu:1", "cpu:2"], "given 2 times for 3 workers"),
        (2, ["gpu:0,2,", "gpu:2,1"], "--devices gpu:2,1: .* share a GPU"),
    ],
)
def test_impossible_plans(workers, devices, words):
    with pytest.raises(SettingError, match=words):
        plan.plan(workers, 1, RUN, devices=devices)


@pytest.mark.parametrize(
    ("devices", "names", "expected"),
    [
        (["GPU:2"], ["ana"] * 2, ["gpu:0,1,", "gpu:2,3,"]),
        (["gpu:1,", "gpu:0,"], ["ana"] * 2, ["gpu:1,", "gpu:0,"]),
    ],
)
def test_workers_get_gpus_of_their_own(devices, names, expected):
    assert plan.own_devices(devices, list(map(Host, names))) == expected


# The command


def test_print_writes_each_roles_environment_and_command():
    """The devices after the dashes are those of each worker."""
    words = ["--devices", "cpu:3", "--seed=3", "--out=my figures"]
    done = CliRunner().invoke(main.d2lpar, ["launch", "--print", "--", *RUN, *words])
    assert done.exception is None, done.output
    lines = done.output.splitlines()
    assert lines[::3] == ["# scheduler", "# server 0", "# worker 0", "# worker 1"]
    assert all("exec env DMLC_ROLE=" in line for line in lines[1::3])
    for line in lines[-5::3]:
        assert f" -m d2lpar.workers.role {' '.join(RUN)} " in line
        assert line.endswith(" --seed=3 '--out=my figures' --devices=cpu:3")


def test_a_role_keeps_only_the_variables_that_the_launcher_sets(monkeypatch):
    """Those of another cluster would open it to all interfaces."""
    planned = plan.plan(2, 1, RUN)[-1].environment
    strangers = {"DMLC_NODE_HOST": "0.0.0.0", "DMLC_USE_KUBERNETES": "1", "PS_X": "2"}
    monkeypatch.setattr(os, "environ", {"HOME": "/", **planned, **strangers})
    role.drop_inherited()
    assert os.environ == {"HOME": "/", **planned}


# The supervisor

# A role notes its start, and goes on when all four have started as often.
BEGIN = """echo $$ >> {0}.pids
until [ $(cat *.pids | wc -l) -ge $((4 * $(wc -l < {0}.pids))) ]; do sleep 0.02; done
"""
WAIT = "exec cat"  # to the end of its standard input, as a role does
ONCE = "[ $(wc -l < {}.pids) -gt 1 ] || "  # at its first start only
NAMES = ("scheduler", "server", "worker0", "worker1")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that supervises shell commands in place of the roles.

    It returns the lines that they wrote; a role without a command waits.
    """
    monkeypatch.chdir(tmp_path)

    def run(hosts=(), more=None, **does):
        shown = []
        roles = plan.plan(2, 1, [], hosts=[Host(host) for host in hosts])
        for name, each in zip(NAMES, roles):
            script = BEGIN.format(name) + does.get(name, WAIT)
            each.command[:] = ["sh", "-c", script]
        supervisor.supervise(
            roles, lambda role, line: shown.append((role.name, line)), **(more or {})
        )
        return shown

    return run


def pids(folder, name):
    return [int(line) for line in (folder / f"{name}.pids").read_text().split()]


def assert_gone(folder, starts=1):
    for name in NAMES:
        assert len(pids(folder, name)) == starts
        assert not any(map(psutil.pid_exists, pids(folder, name)))


def test_a_complete_training_is_the_end(run, tmp_path):
    shown = run(worker0="echo epoch 1; echo end >&2", worker1="exit 0")
    assert shown == [("worker 0", "epoch 1"), ("worker 0", "end")]
    assert_gone(tmp_path)


def test_if_one_is_killed_all_start_again(run, tmp_path, caplog):
    does = {worker: f"{ONCE.format(worker)} {WAIT}" for worker in NAMES[2:]}
    does["worker0"] += "; echo $D2LPAR_RESUME_SINCE > since"
    dies = f"{ONCE.format('worker1')} {{ echo last words; kill -9 $$; }}; "
    does["worker1"] = dies + "exit 0"
    begin = time.time()
    with caplog.at_level(logging.WARNING):
        run(more={"max_restarts": 3}, **does)
    assert "worker 1 was killed (signal 9)" in caplog.text
    assert "    last words" in caplog.text and "restart 1 of 3" in caplog.text
    assert_gone(tmp_path, starts=2)
    assert begin <= float((tmp_path / "since").read_text()) < time.time()


def test_it_gives_up(run, tmp_path):
    with pytest.raises(supervisor.LaunchError, match=r"after 1 restarts: worker 1 "
                       r"ended with status 7; it wrote last:\n    oh"):  # fmt: skip
        run(worker1="echo oh; exit 7", more={"max_restarts": 1})
    assert_gone(tmp_path, starts=2)


def test_an_error_that_would_repeat_is_not_tried_again(run, tmp_path):
    with pytest.raises(SettingError, match=r"^worker 1: lr 0: write another$"):
        run(
            worker1="echo 'd2lpar: lr 0: write another'; exit 2",
            more={"max_restarts": 3},
        )
    assert_gone(tmp_path)


def test_roles_on_hosts_run_there_through_ssh(run, tmp_path, monkeypatch):
    """The ssh here is a script, which reaches the hosts a and b."""
    (tmp_path / "ssh").write_text(
        "#!/bin/sh\n"
        "while [ $1 != -- ]; do shift; done; shift\n"
        'echo $1 >> hosts; exec sh -c "$2"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    server = f"echo at $DMLC_PS_ROOT_URI; {WAIT}"
    shown = run(["a", "b"], server=server, worker0="sleep 1", worker1="exit 0")
    assert shown == [("server 0", "at 127.0.0.1")]
    assert sorted((tmp_path / "hosts").read_text().split()) == ["a", "a", "b"]
    assert_gone(tmp_path)
