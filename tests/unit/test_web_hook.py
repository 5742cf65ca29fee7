"""The pages get into Flower, and into no other process; Flower's own templates still come from Flower."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import flower
import pytest
from structlog.testing import capture_logs

from feedq.telemetry.logs import LogEvent
from feedq.web.hook import extend_flower
from feedq.web.site import LIST_BEGIN, OWN_TEMPLATES, OverlayLoader

FLOWER_TEMPLATES = Path(flower.__file__).with_name("templates")


@pytest.mark.parametrize("command", [["worker"], ["inspect", "flower"]])
def test_the_hook_goes_by_the_subcommand_alone(command: list[str]) -> None:
    """A word ``flower`` elsewhere on the command line is not the subcommand."""
    asked: list[bool] = []

    @click.group(invoke_without_command=True)
    def root() -> None:
        before = "feedq.web.site" in sys.modules
        extend_flower()
        asked.append(before == ("feedq.web.site" in sys.modules))

    @root.command()
    @click.argument("words", nargs=-1)
    def inspect(words: tuple[str, ...]) -> None: ...

    @root.command()
    def worker() -> None: ...

    root(command, standalone_mode=False)
    assert asked == [True]


def test_flowers_navigation_gets_our_tabs_in_front() -> None:
    own = (OWN_TEMPLATES / "feedq_tabs.html").read_bytes()
    markup = OverlayLoader(str(FLOWER_TEMPLATES))._with_tabs()
    assert LIST_BEGIN + own in markup
    assert markup.replace(own, b"") == (FLOWER_TEMPLATES / "navbar.html").read_bytes()


def test_a_flower_with_another_navigation_goes_without_our_tabs(tmp_path: Path) -> None:
    (tmp_path / "navbar.html").write_text("<nav>other</nav>")
    with capture_logs() as lines:
        rendered = OverlayLoader(str(tmp_path)).load("navbar.html").generate()
    assert rendered == b"<nav>other</nav>"
    assert [line["event"] for line in lines] == [LogEvent.TABS_LEFT_OUT]


def test_no_template_of_ours_hides_one_of_flowers() -> None:
    assert {p.name for p in OWN_TEMPLATES.iterdir()} & {p.name for p in FLOWER_TEMPLATES.iterdir()} == set()
