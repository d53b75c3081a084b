"""The launcher: its plan, what it refuses, who dies, who starts again, what stays.

The roles that run here are shell scripts of a line or two, so that what is tested is
the launcher alone; test_faults.py kills real ones.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from d2lpar.cli import main
from d2lpar.errors import DeviceError, SettingError
from d2lpar.workers import launch

ROOT = Path(main.__file__).parents[2]
RUN = ["run", "multiple_gpus_concise"]


# The plan


def test_servers_and_workers_go_over_the_hosts_in_turn(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# the room\nme@ana.lan eth1\n[fe80::1%eth0]  # ours\n\n")
    hosts = launch.read_hosts(file, "eth0")
    ana, bo = "me@ana.lan", "[fe80::1%eth0]"
    assert hosts == [launch.Host(ana, "eth1"), launch.Host(bo, "eth0")]
    planned = launch.plan(3, 1, RUN, interface="wlan0", hosts=hosts)
    where = {role.name: role.host.name for role in planned}
    assert where == {
        "scheduler": "", "server 0": ana,
        "worker 0": ana, "worker 1": bo, "worker 2": ana,
    }  # fmt: skip
    interfaces = [role.environment["DMLC_INTERFACE"] for role in planned]
    assert interfaces == ["wlan0", "eth1", "eth1", "eth0", "eth1"]


@pytest.mark.parametrize(
    "content",
    [b"# nobody\n", b"ana eth0 extra\n", b"ana\n-oProxy=x\n"],
    ids=ascii,
)  # fmt: skip
def test_an_invalid_file_of_hosts(tmp_path, content):
    file = tmp_path / "hosts"
    file.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        launch.read_hosts(file, "eth0")
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("workers", "devices", "words"),
    [
        (3, ["cpu:1", "cpu:2"], "given 2 times for 3 workers"),
        (2, ["gpu"], r"workers 0 and 1 .*share gpu\(0\)"),
        (2, ["gpu:0,2,", "gpu:2,1"], r"share gpu\(2\)"),
        (2, ["gpux"], "gpux"),
    ],
)
def test_impossible_plans(workers, devices, words):
    with pytest.raises((SettingError, DeviceError), match=words):
        launch.plan(workers, 1, RUN, devices=devices)


def test_an_interface_that_does_not_exist():
    assert launch.address_of("lo") == "127.0.0.1"
    with pytest.raises(SettingError, match="nope0"):
        launch.address_of("nope0")


@pytest.mark.parametrize(
    ("devices", "names", "expected"),
    [
        (["gpu:2"], ["ana"] * 2, ["gpu:0,1,", "gpu:2,3,"]),
        (["gpu:1"], ["ana", "bo", "ana"], ["gpu:0,", "gpu:0,", "gpu:1,"]),
        (["gpu:1,", "gpu:0,"], ["ana"] * 2, ["gpu:1,", "gpu:0,"]),
    ],
)
def test_workers_get_gpus_of_their_own(devices, names, expected):
    assert launch.own_devices(devices, list(map(launch.Host, names))) == expected


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
        assert f" -m d2lpar.workers.node {' '.join(RUN)} " in line
        assert line.endswith(" --seed=3 '--out=my figures' --devices=cpu:3")


def test_a_role_gets_only_the_variables_that_the_launcher_sets(tmp_path):
    """Those of another cluster would open it to all interfaces."""
    roles = launch.plan(2, 1, ["list"])
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os\n"
        "atexit.register(lambda: print('has', *sorted(os.environ)))\n"
    )
    strangers = {"DMLC_NODE_HOST": "0.0.0.0", "DMLC_USE_KUBERNETES": "1"}
    strangers["PS_VERBOSE"] = "2"
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        roles[-1].command(sys.executable),
        env={**os.environ, **strangers, **roles[-1].environment, "PYTHONPATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = done.stdout.splitlines()[-1].split()
    found = {name for name in names if name.startswith(("DMLC_", "PS_"))}
    assert found == {n for n in roles[-1].environment if n.startswith("DMLC_")}


def test_dist_async_on_a_shared_machine_is_warned_of(monkeypatch, caplog):
    monkeypatch.setattr(launch, "launch", lambda roles, launcher: None)
    for kvstore, warned in (("dist_sync", 0), ("dist_async", 1)):
        words = ["launch", f"--kvstore={kvstore}", "--", *RUN]
        main.d2lpar.main(words, standalone_mode=False)
        assert caplog.text.count("run programs as you") == warned


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--interface=nope0", "--interface nope0"),
        ("--hosts=/dev/null", "--hosts needs --interface"),
    ],
)
def test_flags_that_are_refused_before_anything_starts(flag, words):
    done = CliRunner().invoke(main.d2lpar, ["launch", flag, "--", *RUN])
    assert words in str(done.exception) and isinstance(done.exception, SettingError)


# Roles that run. Each line: what a role does at its start number $N, counted in a file.
# Text goes to standard error; heartbeats, numbers of steps, to file descriptor 3.

FAKE = """#!/bin/sh
name=$DMLC_ROLE$D2LPAR_WORKER
exec 3>&1 1>&2
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
NAMES = ("scheduler", "server", "worker0", "worker1")


def fake_python(folder, **does):
    """A script in place of Python; the roles wait, but for what they do."""
    words = {**dict.fromkeys(NAMES, WAIT), **does}
    script = folder / "fake"
    script.write_text(FAKE.format(folder=folder, **words))
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def fake(tmp_path):
    """A function that launches roles, which do as it is told; what they wrote."""

    def fake(hosts=(), does=None, **how):
        shown = []
        launcher = launch.Launcher(
            str(tmp_path),
            lambda role, line: shown.append((role.name, line)),
            fake_python(tmp_path, **(does or {})),
            ssh=str(tmp_path / "ssh"),
            logs=tmp_path / "logs",
            **how,
        )
        hosts = [launch.Host(host) for host in hosts]
        launch.launch(launch.plan(2, 1, ["run", "toy"], hosts=hosts), launcher)
        return shown

    return fake


def starts(tmp_path, name):
    return (tmp_path / f"{name}.starts").read_text().count("x")


def is_gone(tmp_path, name):
    pid = int((tmp_path / f"{name}.pid").read_text())
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


DONE = {"worker0": "exit 0", "worker1": "exit 0"}


def test_a_complete_training_is_the_end(fake, tmp_path):
    does = {**DONE, "worker0": "echo epoch 1; echo 1 >&3; echo end"}
    shown = fake(does=does)
    lines = [line for name, line in shown if name == "worker 0"]
    assert lines == ["epoch 1", "end"]
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert log == "epoch 1\nend\n"
    for name in NAMES:
        assert starts(tmp_path, name) == 1 and is_gone(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "role"), [("server", "server 0"), ("worker1", "worker 1")]
)
def test_if_one_is_killed_all_start_again(fake, tmp_path, caplog, name, role):
    wait_once = f"if [ $N = 1 ]; then {WAIT}; fi"
    does = {"worker0": wait_once, "worker1": wait_once}
    dies_once = "if [ $N = 1 ]; then echo last words; kill -9 $$; fi"
    does[name] = f"{dies_once}; {does.get(name, WAIT)}"
    does["worker0"] += "; echo $D2LPAR_RESUME_SINCE > since"
    begin = time.time()
    with caplog.at_level(logging.WARNING):
        fake(does=does)
    assert f"{role} was killed (signal 9)" in caplog.text
    assert "    last words" in caplog.text and "restart 1 of 3" in caplog.text
    assert all(starts(tmp_path, n) == 2 for n in NAMES)
    since = float((tmp_path / "since").read_text())
    assert begin <= since < (tmp_path / "worker0.pid").stat().st_mtime


def test_it_gives_up(fake, tmp_path):
    with pytest.raises(launch.LaunchError, match=r"after 1 restarts: worker 1 "
                       r"ended with status 7; it wrote last:\n    oh"):  # fmt: skip
        fake(does={"worker1": "echo oh; exit 7"}, max_restarts=1)
    assert starts(tmp_path, "worker1") == 2 and is_gone(tmp_path, "worker0")


def test_an_error_that_would_repeat_is_not_tried_again(fake, tmp_path):
    wrong = "echo 'd2lpar: lr 0: write another'; exit 2"
    with pytest.raises(SettingError, match=r"^worker 1: lr 0: write another$"):
        fake(does={"worker1": wrong})
    assert starts(tmp_path, "worker1") == 1 and is_gone(tmp_path, "worker0")


def test_workers_that_make_no_step_hang(fake, tmp_path):
    """One that makes steps is enough: in step they all are."""
    steps = "for n in $(seq 14); do echo $n >&3; sleep 0.1; done"
    with pytest.raises(launch.LaunchError, match="worker 1 hangs, .* no step for"):
        fake(does={"worker0": f"{steps}; {WAIT}"}, timeout=1, max_restarts=0)
    assert is_gone(tmp_path, "worker0") and is_gone(tmp_path, "scheduler")
    fake(does={"worker0": steps, "worker1": "sleep 1.4"}, timeout=1, max_restarts=0)


def test_a_role_without_a_heartbeat_is_named(fake, tmp_path):
    """Once a step is made: before, a role may take long to load MXNet."""
    alive = "while sleep 0.1; do echo $N >&3; N=$((N + 1)); done"
    does = {**dict.fromkeys(NAMES, alive), "server": f"echo hi; {WAIT}"}
    does["worker0"] = f"sleep 0.5; {alive}"
    with pytest.raises(launch.LaunchError) as error:
        fake(does=does, heartbeat=0.4, max_restarts=0)
    assert "server 0 is silent: no heartbeat for" in str(error.value)
    assert str(error.value).endswith("\n    hi")
    assert is_gone(tmp_path, "worker0") and is_gone(tmp_path, "server")


def test_a_taken_port(fake):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"--port {port}: not available"):
            fake(port=port)


# Hosts: the ssh here is a script, too


def ssh(folder, text):
    (folder / "ssh").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "ssh").chmod(0o755)


def test_roles_run_on_the_hosts(fake, tmp_path):
    ssh(tmp_path, 'host=$1; shift; echo $host >> ${0%/*}/hosts; exec sh -c "$*"')
    server = "echo at $DMLC_PS_ROOT_URI; exec cat"
    shown = fake(hosts=["a", "b"], does={**DONE, "server": server})
    assert sorted((tmp_path / "hosts").read_text().split()) == ["a", "a", "b"]
    assert ("server 0", "at 127.0.0.1") in shown


def test_a_host_that_ssh_does_not_reach(fake, tmp_path):
    ssh(tmp_path, "echo no route to host >&2; exit 255")
    with pytest.raises(launch.LaunchError, match="on a ended .*\n    no route to host"):
        fake(hosts=["a"], max_restarts=0)


# The end of the launcher itself


def test_a_launcher_is_killed_and_no_role_outlives_it(tmp_path):
    """Ctrl-C is in test_faults.py."""
    python = fake_python(tmp_path)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "d2lpar", "launch", f"--python={python}", "--", *RUN],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    pids = [tmp_path / f"{name}.pid" for name in NAMES]
    _until(lambda: all(p.exists() and p.read_text().strip() for p in pids))
    launcher.kill()
    _until(lambda: all(is_gone(tmp_path, name) for name in NAMES))
    assert all(is_gone(tmp_path, name) for name in NAMES)
    assert launcher.wait() == -signal.SIGKILL


def _until(condition, seconds=10):
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
