"""Finding, verifying and downloading published files, on tiny stand-ins for them."""

import functools
import hashlib
import http.server
import logging
import socket
import threading
from dataclasses import replace

import pytest

from d2lpar.datasets import fashion, punks
from d2lpar.datasets.download import PublishedFiles
from d2lpar.errors import DataError, SettingError

CONTENTS = {"a.gz": b"images", "b.gz": b"labels"}
REGISTRY = {name: hashlib.sha256(text).hexdigest() for name, text in CONTENTS.items()}


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An address without a server; no files of this machine are found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: connections fail
        yield f"http://127.0.0.1:{nobody.getsockname()[1]}/"


@pytest.fixture
def tiny(nowhere):
    return PublishedFiles("tiny", "Tiny", "small", REGISTRY, (nowhere,))


def put(folder, **changed):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(changed.get(name[0], content))
    return folder


def test_the_folder_asked_for_comes_first(tiny, tmp_path, monkeypatch, caplog):
    asked, cache = tmp_path / "asked", tmp_path / "cache" / "d2lpar" / "tiny"
    for place in (asked / "tiny", asked, cache):
        put(place)
    monkeypatch.setenv("D2LPAR_DATA", str(asked))
    for place in (asked / "tiny", asked):
        assert tiny.paths("auto") == [place / name for name in CONTENTS]
        (place / "b.gz").unlink()  # what is not whole does not count
    assert tiny.paths("tiny")[0] == cache / "a.gz"
    assert f"Tiny is not whole in D2LPAR_DATA {asked}" in caplog.messages[-1]


def test_damage_in_the_folder_asked_for_is_refused(tiny, tmp_path, monkeypatch):
    put(tmp_path / "cache" / "d2lpar" / "tiny")  # a good copy elsewhere hides nothing
    folder = put(tmp_path / "data", b=b"label")
    monkeypatch.setenv("D2LPAR_DATA", str(folder))
    words = f"^{folder}/b.gz: .*not the published SHA-256.*; delete or rename it$"
    with pytest.raises(DataError, match=words):
        tiny.locate("auto")
    monkeypatch.setenv("D2LPAR_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataError, match="D2LPAR_DATA .*/absent: not a folder"):
        tiny.locate("auto")


@pytest.fixture
def served(tmp_path):
    """The address of a folder on a server, the folder, and the requests' lines."""
    requests = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, form, *args):
            requests.append(form % args)

    folder = tmp_path / "served"
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"http://127.0.0.1:{server.server_port}", folder, requests
        server.shutdown()


def test_a_download_is_verified_and_kept(tiny, nowhere, tmp_path, served):
    base, folder, requests = served
    put(folder / "good")
    put(folder / "bad", a=b"segami", b=b"slebal")
    cache = tmp_path / "cache" / "d2lpar" / "tiny"
    bad = replace(tiny, urls=(f"{base}/bad/",))
    with pytest.raises(DataError, match=r"nor downloaded .* \(127.0.0.1: ValueError\)"):
        bad.paths("tiny")
    assert not list(cache.iterdir())
    both = replace(tiny, urls=(nowhere, f"{base}/bad/", f"{base}/good/"))
    for _ in range(2):
        assert both.locate() == "tiny"
        (cache / "a.gz").write_bytes(b"damaged")  # is downloaded again
    assert [path.read_bytes() for path in both.paths("tiny")] == list(CONTENTS.values())
    asked = " ".join(requests)
    assert asked.count("/good/a.gz") == 3 and asked.count("/good/b.gz") == 1


def test_an_unknown_name_is_refused(tiny):
    with pytest.raises(SettingError, match="'other': write one of auto, tiny, small"):
        tiny.locate("other")


@pytest.mark.parametrize(
    ("module", "constant", "substitute", "name"),
    [
        (fashion, "FASHION_MNIST", "sample", "fashion-mnist-sample"),
        (punks, "CRYPTOPUNKS", "synthetic", "synthetic-punks"),
    ],
)
def test_without_a_network_the_substitute_is_used_and_named(
    module, constant, substitute, name, nowhere, monkeypatch, caplog
):
    files = replace(getattr(module, constant), urls=(nowhere,))
    monkeypatch.setattr(module, constant, files)
    assert files.locate("auto") == substitute
    assert module.load("auto", n_train=20).name == name
    assert caplog.record_tuples[0][:2] == ("d2lpar", logging.WARNING)
    assert caplog.messages[0].endswith(f"; using --data {substitute} instead")
    remedy = f"D2LPAR_DATA; or take the data '{substitute}'"
    with pytest.raises(DataError, match=remedy):
        module.load(files.name)
