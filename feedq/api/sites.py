"""Where a request comes from: this machine or another, a page of this site or of another.

Browsers say which page sends a request (``Sec-Fetch-Site``, ``Origin``), and by which name they know the host.
The owner of a name may point it to this machine, and then their page and what listens here are the same site for
a browser ("DNS rebinding"): what asks for no login answers only requests that name it by an address,
``localhost`` or a name that it was told.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

ANY_HOST = "*"


def is_foreign(headers: Mapping[str, str], *, host: str) -> bool:
    """Tells whether a request was sent by the page of another site."""
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site:
        return site != "same-origin"
    return origin is not None and urlsplit(origin).netloc != host


def is_allowed(host: str, hosts: Collection[str]) -> bool:
    """Tells whether ``host``, as requests name it, is an address, ``localhost`` or one of ``hosts``."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    # Nobody can make an address mean another machine.
    return ANY_HOST in hosts or name in hosts or name == "localhost" or _address(name) is not None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
