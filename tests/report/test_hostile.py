"""Names in a program are data: in pages, traces, terminals and JSON."""

import html.parser
import json

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lagom_jax.report.document import from_json, to_json
from lagom_jax.report.page import to_html, write_page
from lagom_jax.report.perfetto import to_trace
from lagom_jax.report.story import Story
from lagom_jax.report.text import to_text

from .browsers import Opened
from .stories import reported
from .test_document import REPORT

HOSTILE = (
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    '" onmouseover="window.broken = 1',
    "]]><!--",
    "&lt;b&gt;&amp;",
    "\x1b]0;title\x07\x1b[31mred\x1b[2J",
    "[bold red]markup[/bold red][/]",
    "\u202egnp.exe\u2066",
    "`${window.broken = 1}`",
    "a\tb\nc\r\nd\x00e",
    "../../etc/passwd",
    "javascript:window.broken=1//",
    "__proto__",
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    "\u2028\u2029",
    "=cmd|' /C calc'!A0",
)
NAMES = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=60),
    st.lists(st.sampled_from(HOSTILE), max_size=4).map("".join),
)
ALLOWED = """
    html head meta title style body a header h1 h2 h3 p nav ul li button main section
    dl div dt dd strong b small table caption thead tbody tr th td span figure
    figcaption noscript pre code footer script br
"""


class Elements(html.parser.HTMLParser):
    """Elements of a page, and their attributes."""

    def __init__(self):
        super().__init__()
        self.names, self.attributes, self.scripts = set(), set(), 0

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.scripts += tag == "script"
        self.attributes |= {name for name, _ in attrs}


def elements(text):
    found = Elements()
    found.feed(text)
    found.close()
    return found


@given(NAMES)
@example("x" * 1_000_000)
def test_a_page_has_no_element_of_a_name(name):
    text = to_html(Story(reported(extra=name, name=name), subject=name))
    found = elements(text)
    assert found.names <= {*ALLOWED.split()}
    assert found.scripts == 2
    assert not any(name.startswith("on") for name in found.attributes)
    assert len(text) < 400_000


@given(NAMES)
@example("x" * 1_000_000)
def test_a_trace_is_json_of_the_same_form(name):
    report = reported(extra=name, name=name)
    text = to_trace(report)
    usual = json.loads(to_trace(reported()))["traceEvents"]
    found = json.loads(text)["traceEvents"]
    assert [event["ph"] for event in found] == [event["ph"] for event in usual]
    assert all("\x1b" not in event["name"] for event in found)
    assert len(text) < 1_000_000


@given(NAMES)
@example("x" * 100_000)
def test_json_is_what_the_schema_says_and_comes_back(name):
    report = reported(extra=name, name=name)
    document = to_json(report)
    assert from_json(document) == report


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_what_the_schema_says(name):
    jsonschema.validate(json.loads(to_json(reported(extra=name, name=name))), REPORT)


@given(NAMES)
@example("x" * 1_000_000)
def test_a_terminal_is_told_nothing_but_text(name):
    for width in (80, 140):
        text = to_text(reported(extra=name, name=name), width=width)
        assert not any(ord(c) < 32 and c != "\n" for c in text)
        assert "\u202e" not in text
        assert len(text) < 50_000


def test_no_name_runs_in_a_browser(chromium, tmp_path):
    path = tmp_path / "hostile.html"
    for name in (*HOSTILE[:3], "".join(HOSTILE), "x" * 1_000_000):
        write_page(Story(reported(extra=name, name=name), subject=name), path)
        one = Opened(chromium, path)
        page = one.page
        page.locator(".sites tbody button").first.click()
        page.get_by_role("button", name="Unfold all loops").click()
        page.locator(".canvas").focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        assert page.evaluate("window.broken") is None
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert one.complaints == []
        assert one.requests == [path.as_uri()]
        one.close()
