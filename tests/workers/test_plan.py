"""The plan of a launch: environments, commands, hosts, and what is refused."""

import pytest
from click.testing import CliRunner

from d2lpar.cli import main
from d2lpar.errors import SettingError
from d2lpar.workers import plan

RUN = ["run", "multiple_gpus_concise"]


def test_every_role_knows_the_others():
    planned = plan.plan(3, 2, RUN, port=5000, devices=["cpu:2"])
    names = [role.name for role in planned]
    assert names == [
        "scheduler", "server 0", "server 1", "worker 0", "worker 1", "worker 2",
    ]  # fmt: skip
    for role in planned:
        environment = role.environment
        assert environment["DMLC_NUM_WORKER"] == "3"
        assert environment["DMLC_NUM_SERVER"] == "2"
        assert environment["DMLC_PS_ROOT_URI"] == "127.0.0.1"
        assert environment["DMLC_PS_ROOT_PORT"] == "5000"
        assert environment["DMLC_INTERFACE"] == "lo"
        assert environment["DMLC_ROLE"] == role.name.split()[0]
        expected = [*RUN, "--devices=cpu:2"] if role.kind == "worker" else []
        assert role.arguments == expected
    workers = [role.environment["D2LPAR_WORKER"] for role in planned[3:]]
    assert workers == ["0", "1", "2"]


def test_servers_and_workers_go_over_the_hosts_in_turn(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# the room\nana eth1\nbo  # by the window\n\n")
    hosts = plan.read_hosts(file, "eth0")
    assert hosts == [plan.Host("ana", "eth1"), plan.Host("bo", "eth0")]
    planned = plan.plan(3, 1, RUN, interface="wlan0", hosts=hosts)
    where = {role.name: role.host.name for role in planned}
    assert where == {
        "scheduler": "", "server 0": "ana",
        "worker 0": "ana", "worker 1": "bo", "worker 2": "ana",
    }  # fmt: skip
    interfaces = [role.environment["DMLC_INTERFACE"] for role in planned]
    assert interfaces == ["wlan0", "eth1", "eth1", "eth0", "eth1"]


@pytest.mark.parametrize("text", ["", "# nobody\n", "ana eth0 extra\n", "-oProxy=x\n"])
def test_a_file_of_hosts_that_is_none(tmp_path, text):
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(SettingError, match=r"name \[interface\]"):
        plan.read_hosts(file, "eth0")


@pytest.mark.parametrize(
    ("args", "flags", "words"),
    [
        ((0, 1), {}, "--workers 0: write a whole number, 1 or more"),
        ((2, 0), {}, "--servers 0: write a whole number, 1 or more"),
        ((3, 1), {"devices": ["cpu:1", "cpu:2"]}, "given 2 times for 3 workers"),
    ],
)
def test_what_cannot_be(args, flags, words):
    with pytest.raises(SettingError, match=words):
        plan.plan(*args, RUN, **flags)


def test_an_interface_that_is_not_there():
    assert plan.address_of("lo") == "127.0.0.1"
    with pytest.raises(SettingError, match="--interface nope0: no such interface"):
        plan.address_of("nope0")


def test_the_commands_are_for_a_shell():
    (role,) = [
        r for r in plan.plan(1, 1, [*RUN, "--out=my figures"]) if r.kind == "worker"
    ]
    text = role.as_shell("py thon", "/some where")
    assert text.startswith("cd '/some where' && exec env DMLC_ROLE=worker ")
    assert text.endswith("'py thon' -m d2lpar.workers.node run multiple_gpus_concise "
                         "'--out=my figures'")  # fmt: skip


def test_print_writes_each_roles_environment_and_command():
    words = ["launch", "--workers=2", "--print", "--", "run", "multiple_machines"]
    done = CliRunner().invoke(main.d2lpar, words)
    lines = done.output.splitlines()
    assert lines[::3] == ["# scheduler", "# server 0", "# worker 0", "# worker 1"]
    assert all("exec env DMLC_ROLE=" in line for line in lines[1::3])
    assert lines[-1].count(" -m d2lpar.workers.node run multiple_machines ") == 1
