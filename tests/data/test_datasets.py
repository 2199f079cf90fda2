"""Downloads from a server of our own: mirrors, checks, and that a failure leaves nothing behind."""

import contextlib
import gzip
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scaleconv.data import datasets, load_digits

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.fixture
def server(contents):
    """A server whose folders misbehave each in its own way; `asked` lists the paths requested."""

    class Handler(BaseHTTPRequestHandler):
        asked: list[str] = []  # noqa: RUF012

        def log_message(self, *_):
            pass

        def do_GET(self):
            self.asked.append(self.path)
            _, kind, name = self.path.split("/")
            data = gzip.compress(contents[name.removesuffix(".gz")], mtime=0)
            if kind == "missing":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 28 if kind == "endless" else len(data)))
            self.end_headers()
            if kind == "good":
                self.wfile.write(data)
            elif kind == "cut":
                self.wfile.write(data[: len(data) // 2])
            elif kind == "noise":
                self.wfile.write(bytes(len(data)))
            elif kind == "endless":
                with contextlib.suppress(OSError):  # the other side is to hang up
                    for _ in range(4096):
                        self.wfile.write(bytes(1 << 16))

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    running.address = f"http://127.0.0.1:{running.server_port}"
    running.asked = Handler.asked
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture
def mirrored(dataset, server, monkeypatch):
    def use(*kinds):
        mirrors = tuple(f"{server.address}/{kind}/" for kind in kinds)
        monkeypatch.setitem(datasets.DATASETS, "small", replace(dataset, mirrors=mirrors))

    return use


def files(path):
    return sorted(file.name for file in path.rglob("*") if file.is_file())


def test_the_next_mirror_is_tried_until_one_gives_the_right_file(mirrored, server, cache):
    mirrored("missing", "cut", "noise", "good")
    digits = load_digits("small")
    assert len(digits) == 30
    assert digits.source == str(cache / "small")
    assert files(cache) == [f"{IMAGES}.gz", f"{LABELS}.gz"]
    assert [path.split("/")[1] for path in server.asked] == ["missing", "cut", "noise", "good"] * 2
    server.asked.clear()
    assert len(load_digits("small")) == 30
    assert server.asked == []


def test_when_no_mirror_has_it_nothing_is_left(mirrored, cache):
    mirrored("missing", "cut", "noise")
    with pytest.raises(ConnectionError, match="any of 3 mirrors") as error:
        load_digits("small")
    assert "HTTP 404" in str(error.value)
    assert "--data-dir" in str(error.value)
    assert "\n" not in str(error.value)
    assert files(cache) == []


def test_mirrors_are_asked_over_https_only():
    urls = [url for each in (datasets.MNIST, datasets.FASHION) for url in each.mirrors]
    assert [url for url in urls if not url.startswith("https://")] == []


def test_a_mirror_that_sends_without_end_is_left(mirrored, cache):
    mirrored("endless", "good")
    assert len(load_digits("small")) == 30
    mirrored("endless")
    (cache / "small" / f"{IMAGES}.gz").unlink()
    with pytest.raises(ConnectionError, match="it sends more bytes than the file has"):
        load_digits("small")


def test_without_requests_the_message_names_the_extra(dataset, monkeypatch, cache):
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(ImportError, match=r"pip install 'scaleconv\[experiments\]'"):
        load_digits("small")
    assert files(cache) == []
