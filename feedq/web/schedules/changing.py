"""Who may change anything through Flower.

Four conditions, the same for pages and API:

1. Whoever asks is logged in as Flower wants it. Without a login nobody may, unless ``FLOWER_UNAUTHENTICATED_API``
   opens the API: Flower's own rule for its own buttons.
2. Flower was not started with ``--read_only``.
3. The request comes from feedq's own pages or from no browser at all. Browsers say where a request comes from
   (``Sec-Fetch-Site``, ``Origin``); one that another site's page sends is refused, logged in or not.
4. A form of a page carries Flower's token, which no other site can read; here it is asked for under every login,
   and without one too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tornado import web


def is_foreign(headers: Mapping[str, str], *, host: str) -> bool:
    """Whether a request was sent by the page of another site."""
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site:
        return site != "same-origin"
    return origin is not None and urlsplit(origin).netloc != host


def refusal(options: Any, *, is_open: bool) -> str | None:
    """Why this Flower changes nothing, or None; ``is_open``: its API needs no login."""
    if options.read_only:
        return "this Flower was started with --read_only"
    if options.basic_auth or options.auth or is_open:
        return None
    return "without a login nothing can be changed; give Flower one (FLOWER_BASIC_AUTH)"


def check_own(request: Any) -> None:
    """Raises tornado's 403 for what another site's page sent."""
    if is_foreign(request.headers, host=request.host):
        raise web.HTTPError(403, "Cross-site request forbidden")
