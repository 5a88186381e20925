"""Takes the pictures of docs/how-to/look.md: the demo's page in a real browser.

    python scripts/write_pictures.py PAGE

PAGE is what `lagom tune llama-3-8b --cluster h100:8x8 --html PAGE` wrote. It needs
playwright, a Chromium on the PATH, and pdftoppm for the printed page.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "how-to" / "pictures"
_COLOURS = 160
_TALL = 1180


def write_picture(name: str, content: bytes) -> None:
    """Writes a picture with few colours, which makes it small."""
    from PIL import Image

    picture = Image.open(io.BytesIO(content)).convert("RGB")
    picture.quantize(_COLOURS).save(FOLDER / f"{name}.png", optimize=True)


def main(page: str) -> None:
    from playwright.sync_api import sync_playwright

    address = Path(page).absolute().as_uri()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )

        def opened(width: int, scheme: Any = "light") -> Any:
            tab = browser.new_page(
                viewport={"width": width, "height": _TALL},
                color_scheme=scheme,
                reduced_motion="reduce",
            )
            tab.goto(address)
            tab.wait_for_selector("html[data-ready]", state="attached")
            return tab

        write_picture("tuned-light", opened(1000).screenshot())
        dark = opened(1000, "dark")
        dark.evaluate("document.getElementById('timeline').scrollIntoView()")
        write_picture("tuned-dark", dark.screenshot())
        write_picture("tuned-narrow", opened(390).screenshot())
        tab = opened(1000)
        tab.get_by_role("button", name="Unfold all loops").click()
        for _ in range(4):
            tab.get_by_role("button", name="Zoom in").click()
        first = tab.locator(".canvas").first
        first.focus()
        # A loop: of a task it would show where its source lies on this machine.
        tab.keyboard.press("ArrowRight")
        tab.wait_for_timeout(300)
        write_picture("unfolded", tab.locator("#timeline").screenshot())
        with tempfile.TemporaryDirectory() as folder:
            printed = Path(folder) / "page.pdf"
            opened(1000, "dark").pdf(path=printed, format="A4")
            subprocess.run(
                ["pdftoppm", "-png", "-r", "70", "-l", "1", printed, printed.stem],
                cwd=folder,
                check=True,
            )
            (drawn,) = Path(folder).glob("*.png")
            write_picture("printed", drawn.read_bytes())
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
