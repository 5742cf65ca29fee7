"""The ``http`` catalog: an answer to GET, or all of its pages.

The connections are those of the connector ``http``: redirects are followed, and each address is checked as
those of feeds are (``FEEDQ_EGRESS_DENY``). An answer whose end is not certain is refused: half of a list looks
like a list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from feedq.connectors.base import Context, Sockets
from feedq.connectors.http_client import NO_CONTENT, HttpClient, HttpRequestOptions
from feedq.core.clock import SystemClock
from feedq.errors import CatalogUnavailable, FeedMisconfigured, SourceUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import BYTES_MAX, FeedCatalog, from_text

PAGES_MAX: Final = 1_000


class HttpCatalog(FeedCatalog):
    """All pages of one address."""

    errors: ClassVar = (TimeoutError,)

    url: str
    """`http://host/path` or `https://host/path`."""
    headers: Annotated[dict[str, SecretStr], BeforeValidator(from_text)] = Field({})
    """Headers for this host, as a JSON object: `{"Authorization": "Bearer …"}`."""
    ca_file: str | None = None
    """PEM file with certificates to trust instead of the system's."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return HttpRequestOptions.model_validate({"url": url}).url

    @property
    def where(self) -> str:
        return str(HttpRequestOptions.model_validate({"url": self.url}).location)

    def contents(self, settings: Settings) -> Iterator[tuple[str, bytes]]:
        try:
            pages = asyncio.run(self._pages(settings))
        except TimeoutError:
            raise TimeoutError(f"no complete answer within {self.timeout_s:g} s (timeout_s)") from None
        except (SourceUnavailable, FeedMisconfigured) as error:
            # It speaks of options of a feed, which have the same names here.
            raise CatalogUnavailable(str(error).replace("source.", "")) from error
        for number, page in enumerate(pages, 1):
            yield (f"page {number}" if len(pages) > 1 else self.where), page

    async def _pages(self, settings: Settings) -> list[bytes]:
        options = HttpRequestOptions.model_validate(
            {
                "url": self.url,
                "headers": {name: value.get_secret_value() for name, value in self.headers.items()},
                "ca_file": self.ca_file,
                "response_timeout_s": self.timeout_s,
                "connect_timeout_s": self.timeout_s,
            }
        )
        context = Context(
            feed="catalog",
            clock=SystemClock(),
            guard=Sockets(),  # nobody shuts them: its time is bounded
            on_connected=lambda: None,
            secrets={},
            permissions=settings.permissions,
            environment=settings.environment,
        )
        pages: list[bytes] = []
        page, left = "", BYTES_MAX
        client = HttpClient(options, context, idle_timeout_s=self.timeout_s)
        async with asyncio.timeout(self.timeout_s), aclosing(client):
            while len(pages) < PAGES_MAX:
                async with client.ask(None, accept="application/json, */*;q=0.9", page=page) as answer:
                    if answer.status in NO_CONTENT or not answer.is_delimited:
                        raise CatalogUnavailable(
                            f"{answer.where}: answered {answer.status} without a complete body"
                        )
                    pages.append(await answer.read(left))
                    left -= len(pages[-1])
                    if not (link := answer.next_link):
                        return pages
                    page = client.page_at(link, answer)
        raise CatalogUnavailable(f"{self.where}: has more than {PAGES_MAX} pages")
