"""The plan of a launch: environments, commands, hosts, and what is refused."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from d2lpar.cli import main
from d2lpar.errors import DeviceError, SettingError
from d2lpar.runs import worker_child
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


NO_HOSTS = {
    "": "no host",
    "# nobody\n": "no host",
    "ana eth0 extra\n": "line 1 is 'ana eth0 extra'",
    "ana\n-oProxy=x\n": "line 2 is '-oProxy=x'",
    "ana -x\n": "line 1 is 'ana -x'",
    "ana;reboot\n": "line 1 is 'ana;reboot'",
    "ana\0\n": r"line 1 is 'ana\x00'",
    b"\x89PNG\r\n\x1a\n\xff\xfe": "not a text file",
}


@pytest.mark.parametrize("content", NO_HOSTS, ids=ascii)
def test_a_file_of_hosts_that_is_none(tmp_path, content):
    file = tmp_path / "hosts"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingError) as caught:
        plan.read_hosts(file, "eth0")
    message = str(caught.value)
    assert message.startswith(f"{file}: {NO_HOSTS[content]}; ")
    assert message.endswith("name [interface]") and "\n" not in message


def test_what_ssh_takes_for_a_host_is_a_host(tmp_path):
    names = ["ana", "me@ana.lan", "10.0.0.1", "[fe80::1%eth0]", "ssh://me@ana:22"]
    (tmp_path / "hosts").write_text("\n".join(names))
    assert [host.name for host in plan.read_hosts(tmp_path / "hosts", "lo")] == names


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


# GPUs


def devices_of(planned):
    flags = [role.arguments[-1] for role in planned if role.kind == "worker"]
    return [flag.removeprefix("--devices=") for flag in flags]


def test_workers_get_gpus_of_their_own():
    assert devices_of(plan.plan(2, 1, RUN, devices=["gpu:1"])) == ["gpu:0,", "gpu:1,"]
    planned = plan.plan(2, 1, RUN, devices=["gpu:2"])
    assert devices_of(planned) == ["gpu:0,1,", "gpu:2,3,"]
    hosts = [plan.Host("ana", "eth1"), plan.Host("bo", "eth1")]
    planned = plan.plan(3, 1, RUN, devices=["gpu:1"], hosts=hosts)
    assert devices_of(planned) == ["gpu:0,", "gpu:0,", "gpu:1,"]
    named = ["gpu:1,", "gpu:0,"]
    assert devices_of(plan.plan(2, 1, RUN, devices=named)) == named
    assert devices_of(plan.plan(1, 1, RUN, devices=["gpu:0,1"])) == ["gpu:0,1"]
    assert devices_of(plan.plan(2, 1, RUN, devices=["cpu:2"])) == ["cpu:2"] * 2


@pytest.mark.parametrize(
    ("devices", "i"),
    [
        (["gpu:0,1"], 0),
        (["gpu:3,"], 3),
        (["gpu"], 0),
        (["gpu:1", "gpu:1"], 0),
        (["gpu:0,2,", "gpu:2,1"], 2),
    ],
)
def test_workers_that_would_share_a_gpu_are_refused(devices, i):
    words = rf"workers 0 and 1 on this machine would share gpu\({i}\); write .*gpu:N"
    with pytest.raises(SettingError, match=words):
        plan.plan(2, 1, RUN, devices=devices)


def test_what_is_no_device_is_refused_before_anything_starts():
    with pytest.raises(DeviceError, match="devices 'gpux': write auto"):
        plan.plan(2, 1, RUN, devices=["gpux"])


@pytest.mark.parametrize("words", [["--devices=gpu:1"], ["--devices", "gpu:1"]])
def test_devices_after_the_dashes_are_shared_out_too(words):
    launch = ["launch", "--workers=2", "--print", "--", "run", "multiple_machines"]
    done = CliRunner().invoke(main.d2lpar, [*launch, *words, "--seed=3"])
    commands = [line for line in done.output.splitlines() if "DMLC_ROLE=worker" in line]
    for line, gpu in zip(commands, ("gpu:0,", "gpu:1,")):
        assert line.endswith(f" run multiple_machines --seed=3 --devices={gpu}")
    assert len(commands) == 2
    done = CliRunner().invoke(main.d2lpar, [*launch, "--devices=gpu:0,1"])
    assert isinstance(done.exception, SettingError)


class Group:
    """Workers whose GPUs are known, in place of ps-lite."""

    synchronous = True

    def __init__(self, *others):
        self.others = [json.dumps(other).encode() for other in others]

    def gather(self, content):
        return [content, *self.others]


def test_two_workers_that_have_the_same_gpu_end_with_one_line(monkeypatch):
    """As "auto" gives them."""
    gpus = [SimpleNamespace(pci_address=a) for a in ("0:3b:0", "0:5e:0")]
    monkeypatch.setattr(worker_child, "cuda_devices", lambda: gpus)
    monkeypatch.setattr(worker_child.platform, "node", lambda: "ana")
    both = [SimpleNamespace(device_type="gpu", device_id=i) for i in range(2)]
    check = worker_child.check_own_gpus
    elsewhere = [["bo", "0:3b:0"]]
    check(Group(elsewhere), both)
    check(Group([["ana", "0:5e:0"]]), both[:1])
    check(Group([]), [SimpleNamespace(device_type="cpu", device_id=0)])
    words = "workers 0 and 2 share the GPU 0:5e:0 of ana: launch with --devices gpu:N"
    with pytest.raises(SettingError, match=words):
        check(Group(elsewhere, [["ana", "0:5e:0"]]), both)
