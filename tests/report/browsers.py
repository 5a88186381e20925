"""A real browser for pages, where there is one."""

import contextlib
import functools
import http.server
import shutil
import threading

import pytest

# On a busy machine it takes long to start, which says nothing about pages.
SLOW_START = 180_000
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium, the machine's own."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: pip install playwright"
    )
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on the PATH: apt-get install chromium")
    with playwright.sync_playwright() as started:
        # As root, as in a container, Chromium has no sandbox.
        browser = started.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=SLOW_START
        )
        yield browser
        browser.close()


class Opened:
    """A page of its own, and what it complained about and asked for."""

    def __init__(self, browser, path, **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.complaints = []
        self.requests = []
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda asked: self.requests.append(asked.url))
        self.page.goto(path.as_uri())
        if context.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-ready]", state="attached")

    def close(self):
        self.context.close()


@contextlib.contextmanager
def serving(folder):
    """The address of a server of a folder's files, on this machine alone."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
