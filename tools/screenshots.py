"""Photograph the dashboard in both themes at two widths: `python tools/screenshots.py [LOGIN_URL]`.

Without a login link the demo is started. All pictures go to build/screenshots; those that README.md or a page of docs
shows are also written to docs/images.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "screenshots"
SHOWN = ROOT / "docs" / "images"
WIDTHS = {1440: 900, 390: 844}
FIRST = "overview-light-1440.png"
"""The picture of README.md, which calls it dashboard.png."""
MOST_BYTES = 200_000
_READY_SECONDS = 120
_PNG = b"\x89PNG\r\n\x1a\n"
_PALETTE = """async (png) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const data = new Uint32Array(canvas.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of data) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const parts = (pixel) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
  const distance = (a, b) => (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2;
  // Half of the palette are the most frequent colours; the others are those that differ most from all before them.
  const frequent = [...counts].sort((a, b) => b[1] - a[1]);
  const colours = frequent.map(([pixel]) => ({ pixel, at: parts(pixel), far: Infinity, best: 0 }));
  const kept = [];
  while (kept.length < Math.min(256, colours.length)) {
    const next = kept.length < 128 ? colours[kept.length] : colours.reduce((a, b) => (b.far > a.far ? b : a));
    for (const colour of colours) {
      const far = distance(colour.at, next.at);
      if (far < colour.far) { colour.far = far; colour.best = kept.length; }
    }
    kept.push(next.at);
  }
  const places = new Map(colours.map((colour) => [colour.pixel, colour.best]));
  let text = "";
  for (const pixel of data) text += String.fromCharCode(places.get(pixel));
  return [image.width, image.height, kept.flat(), btoa(text)];
}"""


@contextmanager
def demo() -> Iterator[str]:
    """Start the demo in a folder of its own, and return its login link once something has failed in it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "postroad", "up", "--demo", "--json", "--port", "0"]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            link = json.loads(process.stdout.readline())["login_url"]
            print("waiting until the demo's failure has its dead letters")
            api = Api(link)
            until = time.monotonic() + _READY_SECONDS
            while not api.get("/overview")["backlog"]["dead"] and time.monotonic() < until:
                time.sleep(1)
            time.sleep(10)
            yield link
        finally:
            process.terminate()
            process.wait(20)


class Api:
    """Reads the server that a login link belongs to."""

    def __init__(self, link: str) -> None:
        self.url, _, token = link.partition("/login#")
        self._client = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=30)

    def get(self, path: str) -> Any:
        """Return the document at this address; None if there is none."""
        answer = self._client.get(path)
        return answer.json() if answer.is_success else None


def pages(api: Api) -> dict[str, str]:
    """Return the pages to photograph by name: the queue, event and job are those with most to see."""
    found: dict[str, str] = {}
    # The job comes first, so that one that runs is still running when its page is opened.
    jobs = (api.get("/jobs?limit=20") or {"items": []})["items"]
    if jobs:
        chosen = next((job for job in jobs if job["status"] == "processing"), jobs[0])
        found["job"] = f"/ui/jobs/{chosen['jobId']}"
    found |= {"overview": "/ui/?window=300", "dead-letters": "/ui/dead-letters"}
    found |= {"agents": "/ui/agents", "map": "/ui/map"}
    queues = api.get("/queues?limit=100")["items"]
    letters = [queue for queue in queues if queue["dead_letter"] is not None]
    if busiest := max(queues, key=lambda queue: queue["visible"], default=None):
        found["queue"] = f"/ui/queues/{busiest['name']}"
    for name in sorted({queue["dead_letter"] for queue in letters}):
        groups = (api.get(f"/queues/{name}/groups") or {"items": []})["items"]
        if groups:
            found.setdefault("event", f"/ui/events/{groups[0]['sample_ids'][0]}")
    return found


def photograph(browser: Browser, link: str, theme: str, width: int) -> Iterator[Path]:
    """Write every page in one theme at one width."""
    api = Api(link)
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": WIDTHS[width]})  # type: ignore[arg-type]
    page, blank = context.new_page(), context.new_page()
    page.goto(link)
    page.wait_for_url("**/ui/")
    for name, path in pages(api).items():
        answer = page.goto(api.url + path)
        if answer is None or not answer.ok:
            print(f"{path} answers {None if answer is None else answer.status}", file=sys.stderr)
            continue
        page.wait_for_timeout(1_500)
        target = OUT / f"{name}-{theme}-{width}.png"
        target.write_bytes(packed(blank, page.screenshot()))
        yield target
    context.close()


def packed(page: Page, png: bytes) -> bytes:
    """Return the picture with a palette of 256 colours, which is a third of the bytes; the page finds them."""
    width, height, colours, pixels = page.evaluate(_PALETTE, base64.b64encode(png).decode())
    rows = base64.b64decode(pixels)
    data = b"".join(b"\0" + rows[at : at + width] for at in range(0, len(rows), width))
    chunks = {
        b"IHDR": width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((8, 3, 0, 0, 0)),
        b"PLTE": bytes(colours),
        b"IDAT": zlib.compress(data, 9),
        b"IEND": b"",
    }
    return _PNG + b"".join(
        len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
        for kind, content in chunks.items()
    )


def shown() -> set[str]:
    """Return the names of the pictures that README.md and the pages of docs show."""
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return {name for text in texts for name in re.findall(r"images/([\w-]+-(?:light|dark)-\d+\.png)", text.read_text())}


def main(link: str) -> int:
    """Photograph everything; the result is 1 if a picture is too large."""
    OUT.mkdir(parents=True, exist_ok=True)
    wanted, heavy = shown(), 0
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or playwright.chromium.executable_path
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for theme in ("light", "dark"):
            for width in WIDTHS:
                for picture in photograph(browser, link, theme, width):
                    size = picture.stat().st_size
                    heavy += size >= MOST_BYTES
                    print(f"{picture.relative_to(ROOT)} {size:,} bytes{' TOO LARGE' if size >= MOST_BYTES else ''}")
                    if picture.name in wanted:
                        shutil.copyfile(picture, SHOWN / picture.name)
                    if picture.name == FIRST:
                        shutil.copyfile(picture, SHOWN / "dashboard.png")
        browser.close()
    return 1 if heavy else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(sys.argv[1]))
    with demo() as started:
        sys.exit(main(started))
