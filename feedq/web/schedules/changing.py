"""Who may change anything on feedq's own pages.

What every change through Flower needs, `feedq.web.guard` asks for. Three conditions more, the same for pages and
API:

1. Whoever asks is logged in as Flower wants it. Without a login nobody may, unless ``FLOWER_UNAUTHENTICATED_API``
   opens the API: Flower's own rule for its own buttons.
2. Flower was not started with ``--read_only``.
3. A form of a page carries Flower's token, which no other site can read; here it is asked for under every login,
   and without one too.
"""

from __future__ import annotations

from typing import Any

from feedq.web.guard import has_login


def refusal(options: Any, *, is_open: bool) -> str | None:
    """Why this Flower changes nothing, or None; ``is_open``: its API needs no login."""
    if options.read_only:
        return "this Flower was started with --read_only"
    if has_login(options) or is_open:
        return None
    return "without a login nothing can be changed; give Flower one (FLOWER_BASIC_AUTH)"
