"""Templates: feedq's own before Flower's, and Flower's navigation with two more tabs."""

from __future__ import annotations

from pathlib import Path

from tornado.template import Loader, Template

from feedq.telemetry import LogEvent, log

OWN_TEMPLATES = Path(__file__).with_name("templates")
NAVIGATION = "navbar.html"
TABS = "feedq_tabs.html"
LIST_BEGIN = b'<ul class="app-nav navbar-nav">'
"""Where Flower's own tabs begin; ours come first."""

logger = log(__name__)


class OverlayLoader(Loader):
    """A loader over Flower's templates. A Flower whose navigation has changed shows without our tabs."""

    def _create_template(self, name: str) -> Template:
        own = OWN_TEMPLATES / name
        if own.is_file():
            return Template(own.read_bytes(), name=name, loader=self)
        if name == NAVIGATION:
            return Template(self._with_tabs(), name=name, loader=self)
        template: Template = super()._create_template(name)
        return template

    def _with_tabs(self) -> bytes:
        markup = (Path(self.root) / NAVIGATION).read_bytes()
        before, begin, after = markup.partition(LIST_BEGIN)
        if not begin:
            logger.warning(LogEvent.TABS_LEFT_OUT)
            return markup
        return before + begin + (OWN_TEMPLATES / TABS).read_bytes() + after
