"""The page in a real browser: draw, slide, upload, read; with the keyboard, on a phone, and for everyone (axe-core).

`make test` and `make test-browser` install axe-core and html-validate where there is npm; Chromium must be there.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "build" / "node_modules"
AXE, VALIDATE = MODULES / "axe-core" / "axe.min.js", MODULES / ".bin" / "html-validate"
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
REFERENCES = ["for", "aria-controls", "aria-labelledby", "aria-describedby"]  # attributes that name elements
RULES = {"extends": ["html-validate:recommended"], "rules": {"aria-label-misuse": ["error", {"allowAnyNamable": True}]}}
TABS = {  # and what has come when a tab is complete
    "digit": "#digit-layers .level",
    "filter": "#filter-levels .level",
    "scene": "#scene-layers img",
    "photo": "#photo-layers .level",
}


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as session:
        opened = session.chromium.launch(executable_path=chromium, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address():
    """Of a server with the networks in the package, started as a user starts it."""
    command = [sys.executable, "-m", "scaleconv", "demo", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as run:
        yield run.stdout.readline().split()[0]
        run.terminate()


@pytest.fixture
def page(browser, address):
    """The page once it shows its first answers; whatever it logs or asks others for fails the test."""
    context = browser.new_context(viewport=DESKTOP)
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    wrong = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda request: request.url.startswith((address, "data:")) or wrong.append(request.url))
    opened.goto(address)
    opened.wait_for_selector("#digit-plain .label")
    opened.wait_for_selector("#digit-curve circle")
    yield opened
    context.close()
    assert wrong == []


def until(page, expression, given=None):
    """Wait until this is true on the page, whose policy lets no script wait for it there."""
    for _ in range(200):
        if page.evaluate(expression, given):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"never true: {expression}")


def open_tab(page, tab):
    page.click(f"#tab-{tab}")
    page.wait_for_selector(TABS[tab])


def names(page, label, network="invariant"):
    """Wait until the network names this digit."""
    until(
        page, "([id, label]) => document.querySelector(id).textContent === label", [f"#digit-{network} .label", label]
    )


def answered(page, path):
    """Wait for the next answer to this path."""
    return page.expect_response(lambda reply: reply.url.endswith(path) and reply.ok)


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("tab", ["digit", "photo"])
def test_the_first_screen_holds_the_slider_the_curve_and_both_answers(page, tab, size):
    page.set_viewport_size(size)
    open_tab(page, tab)
    for part in ("scale", "play", "curve", "image", "plain", "invariant"):
        box = page.locator(f"#{tab}-{part}").bounding_box()
        assert min(box["width"], box["height"]) > 20, part
        assert box["x"] >= 0 <= box["y"], part
        assert box["x"] + box["width"] <= size["width"], part
        assert box["y"] + box["height"] <= size["height"], part


@pytest.mark.parametrize(("tab", "pair"), [("digit", "digits"), ("photo", "photographs")])
def test_a_tab_opens_where_the_plain_network_alone_is_wrong_and_says_how_often_each_is_right(page, tab, pair):
    open_tab(page, tab)
    shown = page.locator(f"#{tab}-picker button[aria-checked=true]").get_attribute("aria-label")
    plain, invariant = (page.text_content(f"#{tab}-{name} .label") for name in ("plain", "invariant"))
    assert plain != invariant == shown.removeprefix("a ")
    assert page.text_content(f"#{tab}-plain .verdict-word") == f"wrong: the label is {invariant}"
    assert page.text_content(f"#{tab}-invariant .verdict-word") == "right"
    measured = page.locator(f"#{pair}-accuracy th").all_text_contents()
    assert page.text_content(f"#{tab}-start") == str(page.locator(f"#{tab}-scale").input_value()) in measured


def test_each_table_has_what_the_networks_were_measured_to_do(page):
    rows = {
        pair: page.locator(f"#{pair}-accuracy tr").all_text_contents() for pair in ("digits", "scenes", "photographs")
    }
    assert {pair: len(each) for pair, each in rows.items()} == {"digits": 8, "scenes": 6, "photographs": 8}
    assert (rows["digits"][0], rows["scenes"][-1], rows["photographs"][-1]) == (
        "0.324.617.8",
        "1.638.753.8",
        "257.357.7",
    )
    hint = page.locator("fieldset:has(#photographs-accuracy) .hint").text_content()
    assert "3,000 test photographs" in hint
    assert "at scales from 0.5 to 2" in hint


def test_the_curve_is_dragged(page):
    box = page.locator("#digit-curve").bounding_box()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"], steps=3)
    middle = float(page.input_value("#digit-scale"))
    assert 1.0 < middle < 1.3
    with answered(page, "/api/classify"):
        page.mouse.move(box["x"] + box["width"] + 50, box["y"], steps=3)
    page.mouse.up()
    assert page.input_value("#digit-scale") == page.text_content("#digit-scale-shown").removesuffix(".00") == "2"
    page.mouse.move(box["x"], box["y"] + 0.5 * box["height"])  # not pressed
    assert page.input_value("#digit-scale") == "2"


def test_play_sweeps_the_scale_there_and_back_until_it_is_paused(page):
    page.focus("#digit-scale")
    page.keyboard.press("End")
    page.click("#digit-play")
    assert page.text_content("#digit-play") == "Pause"
    until(page, "document.getElementById('digit-scale').valueAsNumber < 1.9")
    page.focus("#digit-play")
    page.keyboard.press("Enter")
    assert page.text_content("#digit-play") == "Play"
    scale = page.input_value("#digit-scale")
    page.wait_for_timeout(500)
    assert page.input_value("#digit-scale") == scale


def test_a_picked_digit_is_named_and_the_slider_changes_its_size(page):
    page.fill("#digit-scale", "1")
    page.click("#digit-picker button[aria-label='a 7'] >> nth=0")
    names(page, "7")
    names(page, "7", network="plain")  # which named the first one wrong
    place = page.get_attribute("#digit-here", "x1")
    before = page.get_attribute("#digit-image", "src")
    page.focus("#digit-scale")
    with answered(page, "/api/classify"):
        page.keyboard.press("End")
    assert page.text_content("#digit-scale-shown") == "2.00"
    assert float(page.get_attribute("#digit-here", "x1")) > float(place)
    until(page, "before => document.getElementById('digit-image').src !== before", before)
    assert page.locator("#digit-layers .layer").count() == 2
    assert "names it at" in page.text_content("#digit-curve-caption")


def test_a_drawn_digit_is_named(page):
    page.fill("#digit-scale", "1")
    picked = page.get_attribute("#digit-picker button[aria-checked=true]", "aria-label")
    box = page.locator("#digit-drawing").bounding_box()

    def at(x, y):
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    page.mouse.move(*at(0.5, 0.15))
    page.mouse.down()
    page.mouse.move(*at(0.5, 0.85), steps=12)
    page.mouse.up()
    names(page, "1")
    assert "what the SI-ConvNet names at scale 1" in page.text_content("#digit-curve-caption")
    page.click("#digit-clear")
    names(page, picked.removeprefix("a "))


def test_everything_can_be_reached_and_drawn_with_the_keyboard(page):
    page.focus("#tab-digit")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#tab-filter", "aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    reached = set()
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.parentElement.id"))
    assert {"digit-picker", "digit-drawing", "digit-clear", "digit-scale", "digit-play"} <= reached
    page.focus("#digit-picker button[aria-checked=true]")
    with answered(page, "/api/curve"):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    page.fill("#digit-scale", "1")
    page.focus("#digit-drawing")
    for _ in range(9):
        page.keyboard.press(" ")
        page.keyboard.press("ArrowDown")
    names(page, "1")


def test_a_picture_is_taken_and_a_bad_file_is_refused_in_words(page, tmp_path):
    picture, text, large = tmp_path / "photo.png", tmp_path / "bad.png", tmp_path / "large.png"
    Image.linear_gradient("L").resize((300, 200)).save(picture)
    text.write_text("no picture")
    with large.open("wb") as file:
        file.truncate(100 * 10**6)
    page.click("#tab-filter")
    page.wait_for_selector("#filter-levels .level")
    page.set_input_files("#filter-file", picture)
    until(page, "document.getElementById('filter-image').naturalHeight === 64")  # of 200, as 96 of 300
    until(page, "document.getElementById('filter-example').selectedIndex === -1")  # so that each can be chosen
    for file, message in ((text, "must be a picture"), (large, "at most 8 MiB")):
        page.set_input_files("#filter-file", file)
        until(page, "words => document.querySelector('#filter .error').textContent.includes(words)", message)
        assert page.is_visible("#filter .error")
    with answered(page, "/api/filter"):
        page.check("[name=filter-by][value=rotation]")
    page.wait_for_selector("#filter .error", state="hidden")
    until(page, "document.querySelectorAll('#filter-levels .level').length === 12")


def test_a_filter_of_a_network_is_chosen_in_its_gallery(page):
    page.click("#tab-filter")
    page.select_option("#filter-layer", "SI-FCN.conv3")
    assert page.is_hidden("#filter-patch")
    assert page.locator("#filter-gallery button").count() == 16
    page.click("#filter-gallery button[value='5']")
    until(
        page,
        "document.getElementById('filter-weight-caption').textContent.startsWith('Filter 5; pictures are means')",
    )
    before = page.get_attribute("#filter-plain", "src")
    with answered(page, "/api/filter"):
        page.keyboard.press("ArrowRight")
    assert page.get_attribute("#filter-gallery button[aria-checked=true]", "value") == "6"
    until(page, "before => document.getElementById('filter-plain').src !== before", before)
    page.select_option("#filter-layer", "")
    assert page.is_visible("#filter-patch")
    assert page.is_hidden("#filter-gallery")


def test_conv2d_stands_beside_the_invariant_layer_with_the_same_filter(page):
    page.click("#tab-filter")
    until(page, "Number(document.getElementById('filter-invariant-peak').textContent) > 0")
    plain, invariant = (page.locator(f"#filter-{name}").bounding_box() for name in ("plain", "invariant"))
    assert plain["y"] == invariant["y"]
    peaks = [float(page.text_content(f"#filter-{name}-peak")) for name in ("plain", "invariant")]
    assert 0 < peaks[0] <= peaks[1]
    page.check("[name=filter-by][value=rotation]")
    until(page, "document.getElementById('filter-layer-name').textContent === 'TIConv2d'")


def test_a_scene_follows_its_sliders(page):
    page.click("#tab-scene")
    page.wait_for_selector("#scene-layers img")
    before = page.get_attribute("#scene-image", "src")
    page.click("#scene-next")
    until(page, "before => document.getElementById('scene-image').src !== before", before)
    page.focus("#scene-high")
    with answered(page, "/api/scene"):
        page.keyboard.press("Home")  # below the smallest, which follows
    assert page.text_content("#scene-low-shown") == page.text_content("#scene-high-shown") == "0.4"
    assert "of the pixels of digits are right" in page.text_content("#scene-invariant-right")


def test_a_photograph_is_chosen_or_dropped_and_both_networks_name_it_at_every_scale(page, tmp_path):
    open_tab(page, "photo")
    assert page.locator("#photo-picker button").count() == 4
    page.click("#photo-picker button[aria-label='a ship']")
    caption = "words => document.getElementById('photo-curve-caption').textContent.includes(words)"
    until(page, caption, "Probability of ship (the picture's label)")
    Image.radial_gradient("L").convert("RGB").resize((300, 200)).save(tmp_path / "photo.png")
    before = page.get_attribute("#photo-image", "src")
    page.set_input_files("#photo-file", tmp_path / "photo.png")
    until(page, "before => document.getElementById('photo-image').src !== before", before)
    until(page, caption, "what the SI-ResNet names at scale 1")
    assert page.locator("#photo-picker button[aria-checked=true]").count() == 0
    with answered(page, "/api/classify"):
        page.fill("#photo-scale", "0.5")
    assert page.locator("#photo-layers .layer").count() == 4
    page.evaluate("""
        const file = new File(["no picture"], "bad.png"), data = new DataTransfer();
        data.items.add(file);
        document.getElementById("photo").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
    """)
    until(page, "document.querySelector('#photo .error').textContent.includes('must be a picture')")
    page.click("#photo-picker button[aria-label='a truck']")
    page.wait_for_selector("#photo .error", state="hidden")


def test_a_sweep_ends_when_another_tab_is_opened(page):
    open_tab(page, "photo")
    page.click("#photo-play")
    page.click("#tab-digit")
    scale = page.input_value("#photo-scale")
    page.wait_for_timeout(500)
    assert page.input_value("#photo-scale") == scale


@pytest.mark.parametrize("tab", TABS)
def test_a_tab_fits_a_phone_and_axe_finds_no_violation(page, tab):
    open_tab(page, tab)
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.set_viewport_size(DESKTOP)
    if not AXE.exists():
        pytest.skip("no axe-core: make test-browser installs it where there is npm")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run()")["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def test_the_html_is_valid(page, tmp_path):
    if not VALIDATE.exists():
        pytest.skip("no html-validate: make test-browser installs it where there is npm")
    file = tmp_path / "index.html"
    file.write_text(page.request.get(page.url).text())
    (tmp_path / ".htmlvalidate.json").write_text(json.dumps(RULES))
    found = subprocess.run([VALIDATE, file], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_the_links_of_the_page_lead_somewhere(page):
    links = page.eval_on_selector_all("[href], [src]", "all => all.map((each) => each.href || each.src)")
    assert {f"{page.url}{name}" for name in ("demo.css", "demo.js", "icon.svg")} <= set(links)
    assert [link for link in links if not link.startswith("data:") and not page.request.get(link).ok] == []
    named = "(all, names) => all.flatMap((each) => names.flatMap((name) => each.getAttribute(name)?.split(' ') ?? []))"
    ids = page.eval_on_selector_all("*", named, REFERENCES)
    assert {"digit", "photo-scale", "photo-curve-caption"} <= set(ids)
    assert [each for each in ids if page.locator(f"[id='{each}']").count() != 1] == []
