"""Two hosts: network namespaces on a bridge, reached by a script in place of ssh.

A link between them is cut for good: the training ends with an error and never hangs.
"""

import os
import subprocess
import time

import pytest
from test_faults import EPOCHS, MANY, finish, has_begun, last_state, start
from test_faults import launch_command as on_one_machine

pytestmark = pytest.mark.slow

RUN = on_one_machine()[on_one_machine().index("--") :]
NET = f"d2l{os.getpid() % 10_000}"


def root(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts(tmp_path):
    """The bridge's name; hosts <NET>a and <NET>b behind it, and their file and ssh."""
    try:
        root("ip", "link", "add", NET, "type", "bridge")
    except OSError as error:
        pytest.skip(f"no bridge between network namespaces (as root): {error}")
    try:
        root("ip", "addr", "add", "10.213.77.1/24", "dev", NET)
        root("ip", "link", "set", NET, "up")
        for number, host in enumerate("ab", 2):
            name, outside = f"{NET}{host}", f"{NET}v{host}"
            root("ip", "netns", "add", name)
            root("ip", "link", "add", outside, "type", "veth",
                 "peer", "name", "eth0", "netns", name)  # fmt: skip
            root("ip", "link", "set", outside, "master", NET, "up")
            within = ("ip", "-n", name)
            root(*within, "addr", "add", f"10.213.77.{number}/24", "dev", "eth0")
            root(*within, "link", "set", "eth0", "up")
            root(*within, "link", "set", "lo", "up")
        (tmp_path / "hosts").write_text(f"{NET}a eth0\n{NET}b eth0\n")
        script = '#!/bin/sh\nexec ip netns exec "$1" sh -c "$2"\n'
        (tmp_path / "ssh").write_text(script)
        (tmp_path / "ssh").chmod(0o755)
        yield NET
    finally:
        gone = [["link", "del", f"{NET}v{host}"] for host in "ab"]
        gone += [["netns", "del", f"{NET}{host}"] for host in "ab"]
        for words in (*gone, ["link", "del", NET]):
            subprocess.run(["ip", *words], capture_output=True)


def launch(folder, *flags):
    flags = [f"--hosts={folder}/hosts", f"--ssh={folder}/ssh", f"--interface={NET}",
             "--devices=cpu:1", *flags]  # fmt: skip
    return start(folder / "run", "launch", "--workers=2", "--servers=1", *flags, *RUN)


def link(host, state):
    root("ip", "link", "set", f"{NET}v{host}", state)


def test_training_across_hosts(hosts, tmp_path):
    launcher = launch(tmp_path)
    text = finish(launcher)
    assert launcher.returncode == 0, text
    assert "neither authenticates nor encrypts" in text
    assert last_state(tmp_path / "run", "multiple_gpus_concise").epoch == EPOCHS


@pytest.mark.skipif(not MANY, reason="takes half a minute: make faults")
def test_a_link_that_is_cut_for_good(hosts, tmp_path):
    """The launcher, which still hears both hosts, sees that no step is made."""
    launcher = launch(tmp_path, "--timeout=25", "--max-restarts=1")
    has_begun(tmp_path / "run", launcher)
    link("b", "down")
    begin = time.monotonic()
    text = finish(launcher)
    assert launcher.returncode == 3, text
    assert "no step for 25 s" in text
    assert "not complete after 1 restarts" in text
    assert time.monotonic() - begin < 120
    assert last_state(tmp_path / "run", "multiple_gpus_concise").epoch >= 2
