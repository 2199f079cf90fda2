"""A live server answers the page, refuses each hostile request in one line, drops slow clients, and goes on serving."""

import base64
import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from PIL import Image

from helpers.command import refused
from scaleconv.demo import answers, routes, server
from scaleconv.drawing import COLOURS

STATIC = Path(server.__file__).parent / "static"
IMAGE = {"height": 16, "width": 16, "pixels": 340 * "A" + "AA==", "by": "scale"}
MAPS = {"ConvNet": (3, 4), "SI-ConvNet": (3, 4), "FCN": (3, 4, 4, 4), "SI-FCN": (3, 4, 4, 4)}
LAYERS = {f"{name}.conv{number}": count for name, counts in MAPS.items() for number, count in enumerate(counts, 1)}
DIGIT = {"pair": "digits", "index": 0}
SCENE = {"seed": 0, "digits": 1, "low": 0.5, "high": 1.5}


@contextmanager
def running(host, pairs):
    page = server.PageServer(host, 0, pairs)
    thread = threading.Thread(target=page.serve_forever)
    thread.start()
    yield page
    page.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def page(pairs):
    with running("127.0.0.1", pairs) as server:
        yield server


def ask(page, path, body=None, method="POST", **headers):
    """The status, and the message of a refusal or else the answer."""
    connection = http.client.HTTPConnection(*page.socket.getsockname(), timeout=30)
    sent = json.dumps(body).encode() if isinstance(body, dict) else body
    connection.request(method, path, sent, headers)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    found = json.loads(text) if reply.headers["Content-Type"] == "application/json" else text
    return reply.status, found["error"] if reply.status == 400 and isinstance(found, dict) else found


def saved(image):
    """As the bytes of a PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_the_page_is_served_with_its_policy_and_names_nothing_elsewhere(page):
    for path, name in {"": "index.html", **{each.name: each.name for each in STATIC.iterdir()}}.items():
        with urlopen(page.address + path) as reply:
            text = reply.read()
            assert reply.headers["Content-Security-Policy"] == "default-src 'self'; img-src 'self' data:"
            kept = (reply.headers[each] for each in ("Cache-Control", "X-Content-Type-Options", "Referrer-Policy"))
            assert tuple(kept) == ("no-store", "nosniff", "no-referrer")
        assert text == (STATIC / name).read_bytes()
        assert set(re.findall(r"(?:https?:)?//[\w.]+\.\w+", text.decode())) <= {"http://www.w3.org"}  # of SVG


def test_a_network_has_the_colour_of_its_method_in_the_figures():
    style = (STATIC / "demo.css").read_text()
    for name, method in (("plain", "convnet"), ("invariant", "si_convnet")):
        assert f"--{name}: {COLOURS[method]};" in style


def test_every_route_answers(page):
    offer = ask(page, "/api/offer", {})[1]
    assert {layer["name"]: len(layer["filters"]) for layer in offer["layers"]} == LAYERS
    assert {name: len(each) for name, each in offer["offered"].items()} == {"digits": 30, "photographs": 3}
    assert offer["trained"]["digits"] == "0.8 to 1.25"
    for name, size in (("digits", 784), ("photographs", 3 * 96 * 96)):
        offered = offer["offered"][name][2]
        assert ask(page, "/api/curve", {"pair": name, "index": offered["index"]})[1]["class"] == offered["label"]
        own = base64.b64encode(bytes([255]).ljust(size, b"\0")).decode()
        assert ask(page, "/api/classify", {"pair": name, "pixels": own, "scale": 1})[1]["truth"] is None
    photograph = ask(page, "/api/photograph", saved(Image.new("RGB", (64, 48), "red")))[1]
    assert ask(page, "/api/curve", {"pair": "photographs", "pixels": photograph["pixels"]})[1]["known"] is False
    image = {**offer["examples"][0], "by": "scale"}
    found = ask(page, "/api/filter", {**image, "layer": "SI-FCN.conv2", "filter": 3, "by": "rotation"})[1]
    assert (found["channels"], len(found["levels"])) == (3, 12)
    assert len(ask(page, "/api/filter", {**image, "patch": 108 * "A"})[1]["levels"]) == 7
    assert len(ask(page, "/api/scene", {**SCENE, "digits": 2})[1]["digits"]) <= 2


ODD = (float("nan"), float("inf"), -float("inf"), 200 * "x")
HOSTILE = [  # route, its other fields, a field, what that must be: values that it is not
    ("classify", DIGIT, "scale", "a number from 0.3 to 2.0", (*ODD, 2.01, 0.29, 10**400, None, "1", True, [1], {})),
    ("curve", {"pair": "digits"}, "index", "a whole number from 0 to 199", (None, -1, 200, 1.0, 10**400, False, "0")),
    ("curve", DIGIT, "pair", "one of digits, photographs", ("scenes", None, 0)),
    ("curve", {"pair": "photographs"}, "pixels", "3×96×96 bytes in base64", ("", 1048 * "A")),
    (
        "curve",
        {"pair": "digits"},
        "pixels",
        "28×28 bytes in base64",
        (None, "", "AAAA", 5, 8 * "é", "!" + 1046 * "A" + "==", 1048 * "A"),
    ),
    ("scene", SCENE, "seed", "a whole number from 0 to 1000000", (-1, 10**6 + 1)),
    ("scene", SCENE, "digits", "a whole number from 1 to 6", (0, 7)),
    ("scene", SCENE, "low", "a number from 0.4 to 2.2", (0.3, 2.3)),
    ("scene", {**SCENE, "low": 1.6}, "high", "a number from 1.6 to 2.2", (1.5, 2.3)),
    ("filter", IMAGE, "height", "a whole number from 16 to 96", (15, 97)),
    ("filter", IMAGE, "width", "a whole number from 16 to 96", (15, 97)),
    ("filter", IMAGE, "pixels", "16×16 bytes in base64", ("", 344 * "A")),
    ("filter", IMAGE, "by", "one of scale, rotation", ("shear", {}, None)),
    ("filter", IMAGE, "patch", "9×9 bytes in base64", ("", 112 * "A")),
    ("filter", IMAGE, "layer", f"one of {', '.join(LAYERS)}", (None, "conv1", 0)),
    ("filter", {**IMAGE, "layer": "FCN.conv1"}, "filter", "a whole number from 0 to 2", (None, -1, 3)),
]
EACH = [(*row[:-1], value) for row in HOSTILE for value in row[-1]]


@pytest.mark.parametrize(("path", "fields", "name", "rule", "value"), EACH)
def test_a_field_out_of_its_range_is_refused_by_name_rule_and_value(page, path, fields, name, rule, value):
    message = f"`{name}` must be {rule}, got {str(value)[:80]}"
    assert ask(page, f"/api/{path}", {**fields, name: value}) == (400, message)


def test_pixels_come_row_by_row():
    assert routes.pixels({"patch": "AAECAwQF"}, "patch", 2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"null", b"\xff", 60_000 * b"[", b'{"index": %s}' % (5000 * b"9")])
def test_a_body_that_is_no_json_object_is_refused(page, body):
    assert ask(page, "/api/curve", body) == (400, f"the request must be a JSON object, got {body[:80]}")


REFUSED = ["404 GET /../answers.py", "404 GET /%00", "404 POST /api/no", "405 GET /api/classify", "405 PUT /"]


@pytest.mark.parametrize("line", REFUSED)
def test_another_path_or_method_is_refused(page, line):
    status, method, path = line.split()
    found, text = ask(page, path, b"", method)
    assert (found, text.count("\n")) == (int(status), 0)


@pytest.mark.parametrize("host", ["example.com", "localhost.example.com", "localhost@example.com", "[::1", ""])
def test_a_name_that_leads_here_from_elsewhere_is_refused(page, host):
    assert ask(page, "/", method="GET", Host=host) == (400, "Invalid host header")
    assert {ask(page, "/", method="GET", Host=host)[0] for host in ("localhost:1", "[::1]:1", "127.0.0.1")} == {200}


def ask_unread(page, path, make_body, **headers):
    """An answer to a body that is not read to its end: with bytes unread, a closed connection may lose it."""
    for _ in range(10):
        with suppress(ConnectionError):
            return ask(page, path, make_body(), **headers)
    return "always lost"


def test_a_body_beyond_its_limit_is_refused_and_never_held(page):
    before = int(Path("/proc/self/statm").read_text().split()[1])
    for path, size in (("/api/curve", 2**16), ("/api/picture", 2**23), ("/api/photograph", 2**23)):
        assert ask(page, path, bytes(size))[0] == 400
        for body in (lambda: bytes(size + 1), lambda: iter([bytes(size), b"1"])):  # noqa: B023  # in chunks, of no length
            assert ask_unread(page, path, body) == (413, "Content Too Large")
    length = {"Content-Length": str(10**8)}
    answer = ask_unread(page, "/api/picture", lambda: (bytes(10**5) for _ in range(1000)), **length)
    assert answer == (413, "Content Too Large")
    assert int(Path("/proc/self/statm").read_text().split()[1]) - before < 40 * 256  # pages: 40 MB
    for length in ("-5", "x", "9" * 5000):
        assert ask_unread(page, "/api/curve", lambda: b"{}", **{"Content-Length": length})[0] == 400


def test_a_server_for_everyone_has_any_name(pairs):
    with running("0.0.0.0", pairs) as page:
        assert ask(page, "/", method="GET", Host="example.com")[0] == 200


def test_one_request_is_computed_sixteen_wait_and_the_rest_is_refused(page, monkeypatch):
    free, running, most = threading.Event(), [], []

    def slow(*_):
        running.append(1)
        most.append(len(running))
        free.wait(20)
        running.pop()
        return {}

    monkeypatch.setitem(routes.ROUTES, "/curve", slow)
    with ThreadPoolExecutor(20) as crowd:
        replies = [crowd.submit(ask, page, "/api/curve", {}) for _ in range(20)]
        wait_until(lambda: sum(reply.done() for reply in replies) == 3)
        assert ask(page, "/", method="GET")[0] == 200  # the event loop is free
        free.set()
    refusals = [reply.result() for reply in replies if reply.result()[0] != 200]
    assert refusals == 3 * [(429, "busy: 16 requests are waiting already, try again")]
    assert most == 17 * [1]


def wait_until(reached):
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline, "never reached"
        time.sleep(0.02)


HEAD = b"POST /api/curve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n"


@pytest.mark.parametrize("text", [b"", HEAD, HEAD + b"\r\n{"], ids=["nothing", "half a head", "half a body"])
def test_too_many_connections_are_refused_until_the_silent_ones_are_dropped(page, text, monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 6)
    with ExitStack() as opened:
        for _ in range(server.CONNECTIONS - 1):
            opened.enter_context(socket.create_connection(page.socket.getsockname())).sendall(text)
        wait_until(lambda: len(page.server_state.connections) == server.CONNECTIONS - 1)
        assert ask(page, "/", method="GET") == (503, "Service Unavailable")
        wait_until(lambda: not page.server_state.connections)
    assert ask(page, "/", method="GET")[0] == 200


def test_a_client_that_does_not_read_is_dropped(page, monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.5)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
        client.connect(page.socket.getsockname())
        client.sendall(500 * b"GET /demo.js HTTP/1.1\r\nHost: localhost\r\n\r\n")  # more than all buffers hold
        wait_until(lambda: len(page.server_state.connections) == 1)
        wait_until(lambda: not page.server_state.connections)


def test_an_unforeseen_error_is_one_line(page, monkeypatch):
    monkeypatch.setattr(answers, "curve", lambda *_: 1 / 0)
    assert ask(page, "/api/curve", DIGIT) == (500, "Internal Server Error")
    assert ask(page, "/", method="GET")[0] == 200


def test_a_wrong_folder_address_or_installation_is_one_line(run, page, pairs, monkeypatch):
    refused(run("demo", "--networks", "missing"), "missing/digits/weights", "No such file", "`networks` must be")
    monkeypatch.setattr("scaleconv.demo.pairs.load_pairs", lambda _: pairs)
    refused(run("demo", "--port", "70000"), "`port` must be from 0 to 65535, got 70000")
    taken = page.socket.getsockname()[1]
    refused(run("demo", "--port", taken), f"cannot listen on 127.0.0.1, port {taken} (Address already in use", "--port")
    refused(run("demo", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1", "name another --host or --port")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "scaleconv.demo.server")
    refused(run("demo"), "the demo needs uvicorn: pip install 'scaleconv[demo]'")


def test_the_command_prints_where_it_serves_and_ends_at_ctrl_c():
    host, shown = ("::1", "[::1]") if socket.has_dualstack_ipv6() else ("127.0.0.1", "127.0.0.1")
    command = [sys.executable, "-u", "-m", "scaleconv", "demo", "--host", host, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split()[0]
        port = re.fullmatch(rf"http://{re.escape(shown)}:(\d+)/", address)[1]
        assert urlopen(address).status == 200
        with socket.create_connection((host, int(port))) as client:
            client.sendall(HEAD + b"\r\n{")
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        assert process.stderr.read() == ""
