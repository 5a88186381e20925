"""The page in a real browser: by mouse and by keyboard, light, dark, narrow, printed."""

import re

import pytest

from lagom_jax.report.page import to_html, write_page
from lagom_jax.report.story import Story

from .browsers import Opened
from .stories import many, story

SERIOUS = {"serious", "critical"}
WAYS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(story(), path)
    return path


@pytest.fixture
def opened(chromium, file):
    one = Opened(chromium, file)
    yield one
    one.close()
    assert one.complaints == []
    assert one.requests == [file.as_uri()]


@pytest.fixture
def page(opened):
    return opened.page


def verdicts(page):
    return page.locator(".sites tbody td.verdict").all_inner_texts()


@pytest.mark.parametrize("way", WAYS)
def test_it_opens_in_silence_and_asks_for_nothing(chromium, file, way):
    one = Opened(chromium, file, **WAYS[way])
    assert one.page.locator("canvas").count() == 2
    assert one.complaints == []
    assert one.requests == [file.as_uri()]
    wide = one.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, "it can be scrolled to the side"
    one.close()


@pytest.mark.parametrize("way", WAYS)
def test_axe_finds_nothing_serious(chromium, file, way):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # The policy of the page forbids what is put into it, so it is not kept here.
    one = Opened(chromium, file, bypass_csp=True, **WAYS[way])
    one.page.locator(".sites tbody button").first.click()
    found = axe.Axe().run(one.page).response["violations"]
    serious = [v["id"] for v in found if v["impact"] in SERIOUS]
    assert serious == [], [v["nodes"][0]["html"] for v in found]
    one.close()


@pytest.fixture
def complaining(opened):
    yield opened.page
    assert any("Content Security Policy" in said for said in opened.complaints)
    opened.complaints.clear()


def test_a_script_that_is_put_in_does_not_run(complaining):
    complaining.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        "{textContent: 'window.broken = 1'}))"
    )
    assert complaining.evaluate("window.broken") is None


def test_the_table_is_sorted_by_mouse_and_keyboard(page):
    page.get_by_role("button", name="time", exact=True).click()
    head = page.locator("th[data-key=seconds]")
    assert head.get_attribute("aria-sort") == "descending"
    first = page.locator(".sites tbody tr").first.inner_text()
    page.locator("th[data-key=seconds] button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert page.locator(".sites tbody tr").last.inner_text() == first


def test_the_table_is_filtered(page):
    before = len(verdicts(page))
    page.get_by_role("searchbox", name="Find").fill("mlp.up")
    assert 0 < len(verdicts(page)) < before
    assert "mlp.up" in page.locator(".sites tbody").inner_text()
    page.get_by_role("searchbox", name="Find").fill("")
    page.get_by_role("combobox", name="Which").select_option("sync")
    assert all("compute stream" in words for words in verdicts(page))
    page.get_by_role("combobox", name="Kind").select_option("all-gather")
    assert verdicts(page) == []


def test_the_table_is_of_either_step(page):
    after = page.locator(".count").inner_text()
    page.get_by_role("combobox", name="Step").select_option("as it is")
    before = page.locator(".count").inner_text()
    assert before != after
    assert "22.9 ms" in before
    first = page.locator(".sites tbody tr").first.inner_text()
    assert "all-gather.1" in first


def test_details_open_by_keyboard_and_lead_to_the_timeline(page):
    page.get_by_role("searchbox", name="Find").fill("mlp.up")
    page.locator(".sites tbody button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".sites tr.more").count() == 1
    assert (
        page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    )
    page.locator("#table").get_by_role("button", name="Show on the timeline").click()
    shown = page.locator("#detail").inner_text()
    assert "all-gather-start.1" in shown
    assert "limited by nvlink" in shown


def test_what_is_exposed_most_leads_to_the_timeline(page):
    page.locator("#short").get_by_role("button", name="Show on the timeline").click()
    shown = page.locator("#detail").inner_text()
    assert "all-gather-start.1" in shown


def chart(page, number=0):
    found = page.locator(".canvas").nth(number)
    found.scroll_into_view_if_needed()
    return found


def test_the_timeline_is_read_by_keyboard(page):
    chart(page).focus()
    page.keyboard.press("ArrowRight")
    assert "while.1: 12 iterations" in page.locator("#detail").inner_text()
    page.keyboard.press("Enter")
    assert "unfolded" in page.locator("#detail").inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("z")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert re.search(r"gemm|add|stands still", page.locator("#detail").inner_text())
    page.keyboard.press("0")


def picture(page, number=0):
    return page.evaluate(f"document.querySelectorAll('canvas')[{number}].toDataURL()")


def test_it_zooms_moves_and_unfolds_by_mouse_both_steps_at_one_scale(page):
    start = picture(page), picture(page, 1)
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_timeout(100)
    nearer = picture(page), picture(page, 1)
    assert nearer[0] != start[0]
    assert nearer[1] != start[1]
    box = chart(page).bounding_box()
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_timeout(100)
    assert picture(page, 1) != nearer[1]
    page.get_by_role("button", name="Show the whole step").click()
    page.wait_for_timeout(100)
    assert picture(page) == start[0]
    # The loop's bar stands in the first row.
    page.mouse.click(box["x"] + 400, box["y"] + 34)
    page.wait_for_timeout(100)
    assert (
        "unfolded" in page.locator("#detail").inner_text() or picture(page) != start[0]
    )
    page.get_by_role("button", name="Fold all loops", exact=True).click()
    page.keyboard.down("Control")
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_timeout(100)
    assert picture(page) != start[0]


def test_what_lies_under_the_mouse_is_named(page):
    page.get_by_role("button", name="Unfold all loops").click()
    box = chart(page).bounding_box()
    found = set()
    for x in range(140, int(box["width"]) - 20, 12):
        page.mouse.move(box["x"] + x, box["y"] + 60)
        found.add(page.locator("#detail b").inner_text())
    assert {"gemm.1", "gemm.2"} & found
    assert any("stands still for all-gather-start.1" in words for words in found)


def test_texts_are_copied(chromium, file):
    one = Opened(chromium, file, permissions=["clipboard-read", "clipboard-write"])
    copies = one.page.locator(".copy")
    for number in range(copies.count()):
        copies.nth(number).focus()
        one.page.keyboard.press("Enter")
        said = copies.nth(number).and_(one.page.get_by_text("Copied", exact=True))
        said.wait_for()
        text = one.page.evaluate("navigator.clipboard.readText()")
        assert text == one.page.locator("pre code").nth(number).inner_text()
    assert one.complaints == []
    one.close()


def test_light_becomes_dark_and_back(page):
    def ground():
        return page.evaluate(
            "getComputedStyle(document.documentElement).backgroundColor"
        )

    light = ground()
    page.get_by_role("button", name="Light or dark").click()
    assert ground() != light
    page.get_by_role("button", name="Light or dark").click()
    assert ground() == light


def test_printed_it_is_light_and_whole(chromium, file, tmp_path):
    one = Opened(chromium, file, color_scheme="dark")
    one.page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    # What is drawn is still there once the page has another width.
    drawn = "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size"
    assert one.page.locator("canvas").first.evaluate(drawn) > 8
    one.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert one.page.evaluate("document.documentElement.dataset.theme") == "light"
    one.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert one.page.evaluate("document.documentElement.dataset.theme") is None
    one.close()


def test_without_scripts_everything_that_is_read_is_there(chromium, file):
    one = Opened(chromium, file, java_script_enabled=False)
    text = one.page.locator("main").inner_text()
    for words in ("Exposed most", "What that brings", "needs JavaScript", "NCCL's own"):
        assert words in text
    one.close()


def test_ten_thousand_sites_are_listed_in_pages(chromium, tmp_path):
    path = tmp_path / "many.html"
    report = many(10_000)
    write_page(Story(report), path)
    assert path.stat().st_size < 3_000_000
    one = Opened(chromium, path)
    page = one.page
    assert "10000 of 10000" in page.locator(".count").inner_text()
    page.get_by_label("those alike in one row").uncheck()
    assert page.locator(".sites tbody tr").count() == 50
    page.get_by_role("searchbox", name="Find").fill("layers_9999")
    assert page.locator(".sites tbody tr").count() == 1
    page.get_by_role("button", name="Zoom in").click()
    assert one.complaints == []
    one.close()


def test_units_are_those_of_the_terminal(page):
    """The script's numbers and Python's, of the same figures."""
    html = to_html(story())
    report = story().after
    shown = page.locator(".count").inner_text()
    assert "in" in shown
    from lagom_jax.units import in_percent, in_seconds

    exposed = sum(one.exposed_seconds for one in report.collectives)
    assert in_seconds(exposed) in shown
    assert in_percent(exposed, report.step_seconds) in shown
    assert "<script>" in html
