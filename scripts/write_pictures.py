"""Takes the pictures of docs/how-to: pages in a real browser.

    python scripts/write_pictures.py [--tuned PAGE]

It makes the pages first: the demo's (minutes; --tuned takes one that is there), and
one of meshes. It needs playwright, a Chromium on the PATH, and pdftoppm for the printed
page.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "how-to" / "pictures"
_COLOURS = 255
_TALL = 1180
_TUNED = ["tune", "llama-3-8b", "--cluster", "h100:8x8"]
_MESH = [
    *("mesh", "llama-3-70b", "--framework", "megatron", "--cluster", "h100:8x8"),
    *("--tokens", "4194304", "--sequence", "4096"),
]


def write_picture(name: str, content: bytes) -> None:
    """Writes a picture with few colours, which makes it small."""
    from PIL import Image

    picture = Image.open(io.BytesIO(content)).convert("RGB")
    # Colours of a small area count, too: those of a legend.
    kept = picture.quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE)
    kept.save(FOLDER / f"{name}.png", optimize=True)


def made(command: list[str], folder: Path) -> Path:
    """The page that a command writes."""
    page = folder / f"{command[0]}.html"
    lagom = [sys.executable, "-m", "lagom_jax", *command]
    # By its name alone, since the page shows the command.
    subprocess.run(
        [*lagom, "--html", page.name], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuned", type=Path, help="the demo's page, if it is there")
    given = parser.parse_args().tuned
    with tempfile.TemporaryDirectory() as folder:
        tuned = given or made(_TUNED, Path(folder))
        take_pictures(tuned.absolute(), made(_MESH, Path(folder)))


def take_pictures(tuned: Path, meshes: Path) -> None:
    """Opens both pages and writes what is seen."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )

        def opened(width: int, scheme: Any = "light", page: Path = tuned) -> Any:
            tab = browser.new_page(
                viewport={"width": width, "height": _TALL},
                color_scheme=scheme,
                reduced_motion="reduce",
            )
            tab.goto(page.as_uri())
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
        write_picture("mesh-light", opened(1000, page=meshes).screenshot())
        dark = opened(1000, "dark", meshes)
        dark.evaluate("document.getElementById('chart0').scrollIntoView()")
        write_picture("mesh-dark", dark.screenshot())
        write_picture("mesh-narrow", opened(390, page=meshes).screenshot())
        browser.close()


if __name__ == "__main__":
    main()
