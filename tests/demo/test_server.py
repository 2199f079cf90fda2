"""The server answers this machine, refuses what is too much with a message, and goes on serving."""

import http.client
import io
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from PIL import Image

from helpers.command import refused
from scaleconv.demo import limits, server

STATIC = Path(server.__file__).parent / "static"


@pytest.fixture(scope="module")
def served(pairs):
    page = server.PageServer("127.0.0.1", 0, pairs)
    thread = threading.Thread(target=page.serve_forever, daemon=True)
    thread.start()
    yield page
    page.shutdown()
    page.server_close()


@pytest.fixture
def ask(served):
    """Send a request, give the status and what is in the answer."""

    def send(path, body=None, method="POST", headers=None):
        connection = http.client.HTTPConnection(*served.server_address, timeout=60)
        content = body if isinstance(body, bytes | None) or hasattr(body, "read") else json.dumps(body).encode()
        connection.request(method, path, content, headers or {})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        found = json.loads(text) if reply.headers["Content-Type"] == "application/json" else text
        return reply.status, found

    return send


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@contextmanager
def started(served, count, text):
    """So many connections that have sent this much and go no further."""
    with ExitStack() as opened:
        for _ in range(count):
            connection = opened.enter_context(socket.create_connection(served.server_address, timeout=10))
            connection.sendall(text)
        yield


class Zeros:
    """A file of so many zeros that is never in memory as a whole."""

    def __init__(self, left):
        self.left = left

    def read(self, most=2**20):
        count = min(most, self.left)
        self.left -= count
        return bytes(count)


def test_the_files_of_the_page_are_served(ask):
    for path, (name, _) in server.FILES.items():
        assert ask(path, method="GET") == (200, (STATIC / name).read_bytes())
    assert ask("/../answers.py", method="GET") == (404, {"error": "there is no /../answers.py here"})


def test_the_page_names_nothing_outside_of_it():
    for name, _ in server.FILES.values():
        named = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+", (STATIC / name).read_text()))
        assert named <= {"http://www.w3.org"}, name  # the name of SVG, which nobody loads


def test_every_question_of_the_page_is_answered(ask):
    status, offer = ask("/api/offer", {})
    assert (status, len(offer["digits"]), len(offer["layers"])) == (200, 30, 12)
    digit, image = {"index": offer["digits"][7]["index"]}, offer["examples"][0]
    assert ask("/api/digit", {**digit, "scale": 0.3})[0] == 200
    assert ask("/api/curve", digit)[1]["class"] == offer["digits"][7]["label"]
    sent = {name: image[name] for name in ("pixels", "width", "height")}
    status, found = ask("/api/filter", {**sent, "by": "scale", "layer": "SI-FCN.conv2", "filter": 3})
    assert (status, found["channels"]) == (200, 3)
    assert ask("/api/scene", {"seed": 5, "digits": 2, "low": 0.4, "high": 2.2})[0] == 200


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/api/digit", {"index": 0, "scale": float("nan")}, "`scale` must be a number from 0.3 to 2, got nan"),
        ("/api/digit", {"index": 10**9, "scale": 1}, "`index` must be a whole number from 0 to 199, got 1000000000"),
        ("/api/digit", {"drawing": "AAAA", "scale": 1}, "`drawing` must be 28×28 bytes in base64, got AAAA"),
        (
            "/api/scene",
            {"seed": 0, "digits": 99, "low": 1, "high": 1},
            "`digits` must be a whole number from 1 to 6, got 99",
        ),
        ("/api/scene", {"seed": 0, "digits": 1, "low": 2, "high": 1}, "`high` must be a number from 2 to 2.2, got 1"),
        ("/api/filter", {"height": 9999, "width": 20}, "`height` must be a whole number from 16 to 96, got 9999"),
    ],
)
def test_fields_out_of_their_range_are_refused(ask, path, fields, message):
    assert ask(path, fields) == (400, {"error": message})


def test_a_file_of_100_mb_is_refused_and_never_held(ask):
    size, before = 100 * 10**6, resident()
    status, answer = ask("/api/picture", Zeros(size), headers={"Content-Length": str(size)})
    assert (status, answer) == (413, {"error": "this is too large: at most 8 MiB are taken"})
    assert resident() - before < 30 * 2**20
    assert ask("/api/digit", bytes(limits.MOST_JSON + 1)) == (
        413,
        {"error": "this is too large: at most 64 KiB are taken"},
    )


@pytest.mark.parametrize("length", ["", "-5", "x", "²", "9" * 5000])
def test_a_request_without_its_length_is_refused(served, length):
    connection = http.client.HTTPConnection(*served.server_address, timeout=60)
    connection.putrequest("POST", "/api/digit")
    connection.putheader("Content-Length", length.encode())
    connection.endheaders()
    assert connection.getresponse().status == 411
    connection.close()


def test_two_hundred_requests_at_once_are_answered_or_told_to_come_again(ask, served):
    before, together = resident(), threading.Barrier(200)

    def one(_):
        together.wait()
        return ask("/api/digit", {"index": 0, "scale": 1.5})

    with ThreadPoolExecutor(200) as crowd:
        replies = list(crowd.map(one, range(200)))
    told = dict(replies)
    assert set(told) <= {200, 429}
    assert 200 in told
    if 429 in told:
        assert told[429] == {"error": "busy: 16 requests are waiting already, try again"}
    assert resident() - before < 100 * 2**20
    assert ask("/api/digit", {"index": 0, "scale": 1.5})[0] == 200


def test_who_finds_no_place_to_wait_is_refused_at_once(ask, served):
    places = [served.waiting.acquire(blocking=False) for _ in range(server.WAITING)]
    try:
        assert ask("/api/curve", {"index": 0})[0] == 429
    finally:
        for _ in filter(None, places):
            served.waiting.release()
    assert ask("/api/curve", {"index": 0})[0] == 200


HEAD = b"POST /api/digit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n"


@pytest.mark.parametrize("text", [b"", HEAD, HEAD + b"\r\n{"], ids=["nothing", "half a head", "half a body"])
def test_clients_that_send_slowly_make_room_for_others(ask, served, text, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    start = time.monotonic()
    with started(served, server.CONNECTIONS + 8, text):
        assert ask("/api/digit", {"index": 0, "scale": 1})[0] == 200
    assert time.monotonic() - start < server.SECONDS - 3  # so it was not their silence that ended them


def test_who_waits_for_an_answer_is_not_slow(ask, served):
    with ThreadPoolExecutor(1) as other:
        hold = threading.Event()
        served.worker.submit(hold.wait)
        waiting = other.submit(ask, "/api/curve", {"index": 0})
        wait_until(lambda: served.waiting._value < server.WAITING)
        assert served.slow == {}
        hold.set()
        assert waiting.result()[0] == 200


def test_all_answers_are_computed_in_one_thread(ask, served, monkeypatch):
    """Each thread keeps memory of its own, so large pictures in many of them would take it many times."""
    seen = set()
    monkeypatch.setitem(served.routes, "/api/digit", lambda _: seen.add(threading.get_ident()) or {})
    with ThreadPoolExecutor(8) as others:
        assert {code for code, *_ in others.map(lambda _: ask("/api/digit", {}), range(16))} == {200}
    assert len(seen) == 1


def wait_until(reached):
    for _ in range(1000):
        if reached():
            return
        time.sleep(0.01)
    pytest.fail("never reached")


def test_half_a_request_is_not_computed(served, monkeypatch):
    asked = []
    monkeypatch.setitem(served.routes, "/api/digit", lambda fields: asked.append(fields) or {})
    for text, expected in ((HEAD + b"\r\n{}", []), (HEAD.replace(b"60000", b"2") + b"\r\n{}", [{}])):
        with socket.create_connection(served.server_address, timeout=10) as connection:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            assert bool(connection.recv(100)) == bool(expected)
        assert asked == expected


def test_a_slow_client_is_heard_to_the_end_as_long_as_there_is_room(served, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.0)
    body = b'{"index": 0}'
    with socket.create_connection(served.server_address, timeout=10) as slow:
        for part in (
            b"POST /api/curve HTTP/1.1\r\nHost: localhost\r\n",
            b"Content-Length: 12\r\n\r\n",
            body[:5],
            body[5:],
        ):
            slow.sendall(part)
            time.sleep(0.1)
        assert slow.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_ten_thousand_frames_take_no_more_memory_than_one(ask, kind):
    file, before = animation(kind, 10_000), resident()
    assert Image.open(io.BytesIO(file)).n_frames == 10_000
    status, answer = ask("/api/picture", file)
    if kind == "GIF":
        assert (status, answer) == (400, {"error": "`file` must be a picture, PNG, JPEG, BMP or WEBP"})
    else:
        assert (status, answer["width"]) == (200, 32)
    assert resident() - before < 20 * 2**20


def animation(kind, count):
    """A true animation of so many frames, put together from one: making each would take long."""
    file = io.BytesIO()
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    data = file.getvalue()
    if kind == "GIF":  # from its graphic control on, a frame ends where the file does
        at = data.rindex(b"\x21\xf9")
        return data[:at] + (count - 1) * data[at:-1] + b";"
    at = data.rindex(b"ANMF")
    data = data[:at] + (count - 1) * data[at:]
    return data[:4] + (len(data) - 8).to_bytes(4, "little") + data[8:]


def test_another_method_is_refused_in_words(ask):
    status, answer = ask("/", method="PUT", body=b"")
    assert (status, answer) == (501, {"error": "Unsupported method ('PUT')"})


@pytest.mark.parametrize("name", ["example.com", "localhost.example.com", "localhost@example.com", "[::1", "[x]", ""])
def test_a_name_that_leads_here_from_elsewhere_is_refused(ask, served, name):
    assert ask("/", method="GET", headers={"Host": name}) == (
        403,
        {"error": f"this page is served at {served.address}"},
    )
    assert ask("/", method="GET", headers={"Host": f"localhost:{served.server_address[1]}"})[0] == 200


def test_a_server_for_everyone_answers_to_every_name(ask, served, monkeypatch):
    monkeypatch.setattr(served, "host", "0.0.0.0")
    assert ask("/", method="GET", headers={"Host": "example.com"})[0] == 200


def test_what_is_sent_may_load_nothing_from_elsewhere_and_is_not_kept(served):
    connection = http.client.HTTPConnection(*served.server_address, timeout=60)
    connection.request("GET", "/")
    sent = connection.getresponse().headers
    connection.close()
    assert sent["Content-Security-Policy"] == "default-src 'self'; img-src 'self' data:"
    assert (sent["Cache-Control"], sent["X-Content-Type-Options"]) == ("no-store", "nosniff")


@pytest.mark.parametrize(("most", "closed"), [(10**6, None), (10**5, "close")])
def test_a_body_that_is_not_read_to_its_end_ends_the_connection(served, monkeypatch, most, closed):
    monkeypatch.setattr(server, "DRAINED", most)
    connection = http.client.HTTPConnection(*served.server_address, timeout=60)
    connection.request("POST", "/api/curve", bytes(200_000))
    assert connection.getresponse().headers["Connection"] == closed
    connection.close()


def test_a_mistake_of_ours_is_an_answer_too(ask, served, monkeypatch):
    monkeypatch.setitem(served.routes, "/api/curve", lambda _: 1 / 0)
    assert ask("/api/curve", {}) == (500, {"error": "unforeseen ZeroDivisionError"})
    assert ask("/", method="GET")[0] == 200


def test_a_wrong_folder_or_port_is_one_line(run, pairs, monkeypatch):
    refused(run("demo", "--networks", "missing"), "cannot read missing/means.json (No such file", "`networks` must be")
    monkeypatch.setattr("scaleconv.demo.networks.load_pairs", lambda _: pairs)
    refused(run("demo", "--port", "70000"), "`port` must be from 0 to 65535, got 70000")
    refused(run("demo", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1", "name another --host or --port")
