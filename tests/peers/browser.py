"""`Browser`: a headless Chromium with one page of Flower at a time, as somebody who is logged in sees it.

::

    with Browser(base_url, login="ada:secret", look=PHONE_DARK) as browser:
        browser.open("/feeds")
        browser.check_accessible()

The page must say nothing in its console while a test looks at it: a script that fails, a file that is missing
and whatever the content security policy forbids fail the test in `close`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped] # has no types
from playwright.sync_api import ConsoleMessage, Page, ViewportSize, sync_playwright

from tests.peers.servers import program

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 20_000
TAKE_SCREENSHOTS = "FEEDQ_SCREENSHOTS"
"""The environment variable that names a directory: the tests put pictures of the pages there."""


@dataclass(frozen=True, slots=True)
class Look:
    """How large a window is, and which colours and movements whoever sits before it wants."""

    width: int
    height: int
    colours: Literal["light", "dark"]
    motion: Literal["reduce", "no-preference"] = "reduce"

    @property
    def name(self) -> str:
        return f"{self.width}-{self.colours}"


DESK_LIGHT = Look(1300, 900, "light")
DESK_DARK = Look(1300, 900, "dark")
PHONE_LIGHT = Look(420, 900, "light")
PHONE_DARK = Look(420, 900, "dark")
LOOKS = (DESK_LIGHT, DESK_DARK, PHONE_LIGHT, PHONE_DARK)


class Browser:
    """A browser window; a context manager."""

    def __init__(self, base: str, *, login: str = "", look: Look = DESK_LIGHT, scripts: bool = True) -> None:
        self.base, self._login, self.look, self._scripts = base, login, look, scripts
        self.complaints: list[str] = []
        """What the page said in its console."""

    def __enter__(self) -> Self:
        chromium = program("chromium")
        self._playwright = sync_playwright().start()
        self._chromium = self._playwright.chromium.launch(
            executable_path=chromium, headless=True, args=[*FLAGS]
        )
        user, _, password = self._login.partition(":")
        size: ViewportSize = {"width": self.look.width, "height": self.look.height}
        self._context = self._chromium.new_context(
            base_url=self.base,
            http_credentials={"username": user, "password": password} if user else None,
            viewport=size,
            color_scheme=self.look.colours,
            reduced_motion=self.look.motion,
            java_script_enabled=self._scripts,
            bypass_csp=False,
        )
        self._context.set_default_timeout(TIMEOUT_MS)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.close()
        self._chromium.close()
        self._playwright.stop()
        if kind is None:
            assert self.complaints == []

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    # -- keyboard ------------------------------------------------------------------------------------

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def tab_to(self, selector: str, *, most: int = 120) -> None:
        """Go to an element as somebody without a mouse does."""
        for _ in range(most):
            self.press("Tab")
            if self.has_focus(selector):
                return
        raise AssertionError(f"{selector} is not reached with the tabulator")

    def has_focus(self, selector: str) -> bool:
        found: bool = self.page.evaluate("s => !!document.activeElement?.matches(s)", selector)
        return found

    def wait_for_focus(self, selector: str) -> None:
        """A dialog gives it back in an event that comes after it has gone."""
        self.page.wait_for_function("s => !!document.activeElement?.matches(s)", arg=selector)

    # -- looks ---------------------------------------------------------------------------------------

    def check_accessible(self) -> None:
        """Fail with what axe finds wrong, and where."""
        found: Sequence[dict[str, Any]] = Axe().run(self.page).response["violations"]
        said = [
            f"{one['id']} ({one['impact']}): {one['help']}\n    "
            + "\n    ".join(f"{node['html'][:200]}: {_why(node)}" for node in one["nodes"][:5])
            for one in found
        ]
        assert said == [], "\n".join([f"{self.page.url}, {self.look.name}:", *said])

    def check_width(self) -> None:
        """Nothing may be wider than the window: whoever has a phone would have to push the page about."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= self.look.width, f"{self.page.url} is {wide} pixels wide, of {self.look.width}"

    def keep_picture(self, name: str) -> None:
        """Take a picture of the whole page, if pictures are asked for."""
        directory = os.environ.get(TAKE_SCREENSHOTS)
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            # What sticks to the top of the window would be in the middle of the picture.
            self.page.evaluate("window.scrollTo(0, 0)")
            path = Path(directory) / f"{name}-{self.look.name}.png"
            self.page.screenshot(path=path, full_page=True, animations="disabled")


def _why(node: dict[str, Any]) -> str:
    return " ".join(str(check["message"]) for check in [*node["any"], *node["all"], *node["none"]][:2])
