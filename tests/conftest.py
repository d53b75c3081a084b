"""What several test files need. Imports no MXNet: some tests run without it."""

import http.server
import os
import signal
import threading
from pathlib import Path

import pytest
from last_cells import last_cell

# A shell's background job ignores Ctrl-C, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_data():
    """The folder with the real Fashion-MNIST, named by D2LPAR_DATA."""
    from d2lpar.datasets import FASHION_MNIST_FILES

    value = os.environ.get("D2LPAR_DATA")
    if not value:
        pytest.skip("D2LPAR_DATA is not set: name a folder with Fashion-MNIST in it")
    root = Path(value).expanduser()
    for folder in (root / "fashion-mnist", root):
        if all(
            (folder / f"{name}.gz").is_file() or (folder / name).is_file()
            for name in FASHION_MNIST_FILES
        ):
            return folder
    pytest.skip(f"D2LPAR_DATA={value} holds no Fashion-MNIST")


@pytest.fixture(scope="session")
def short_checkout(tmp_path_factory):
    """A folder for PYTHONPATH: this package, and chapters without their lessons.

    For tests of what follows the cells, which would train for a while first.
    """
    from d2lpar.cli import main

    folder = tmp_path_factory.mktemp("checkout")
    package = Path(main.__file__).parents[1]
    (folder / "d2lpar").symlink_to(package, target_is_directory=True)
    (folder / "chapters").mkdir()
    for name, script in main.chapter_files().items():
        (folder / "chapters" / f"{name}.py").write_text(last_cell(script))
    return folder


@pytest.fixture
def http_server():
    """Start a server with ``http_server(answer)``; returns its URL and requests' log.

    ``answer(path)`` is the body and the length to announce, or None for a 404.
    """
    servers = []

    def start(answer):
        requests = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                requests.append(self.path.strip("/"))
                answered = answer(self.path.strip("/"))
                if answered is None:
                    return self.send_error(404)
                body, length = answered
                self.send_response(200)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), daemon=True
        )
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}", requests

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()
