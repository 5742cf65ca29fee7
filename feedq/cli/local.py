"""Commands that ask no API, though one is named, and why."""

from __future__ import annotations

from collections.abc import Mapping

from feedq.errors import InvalidInput

LOCAL: Mapping[str, str] = {
    "up": "starts processes on the machine that it is called on",
    "env": "prints passwords of that machine's servers",
    "api": "is the API",
    "db upgrade": "is done before the API of a release can run",
    "db status": "is asked before the API of a release can run",
    "db grants": "needs a superuser, whom the API must not be",
    "feed test": "connects to the source from where it is called, with the secrets there",
    "feed logs": "reads the log files of the machine that it is called on",
    "alert test": "sends from where it is called, to the addresses that are set there",
    "simulate": "computes, and asks nobody",
    "lint": "reads files, and asks no server",
    "completion": "is for a shell",
}


def reason_of(path: str) -> str | None:
    """Why this command is local, or all below it are; None when it is not."""
    found = [why for name, why in LOCAL.items() if f"{name} ".startswith(f"{path} ")]
    return found[0] if found and path != "feed" else None


def not_served(path: str) -> InvalidInput:
    """The error of a command that was to ask a server."""
    why = reason_of(path)
    because = "" if why is None else f": it {why}"
    return InvalidInput(
        f"`feedq {path}` asks no API{because}. Leave --server out, and FEEDQ_SERVER, and do it where the database "
        "can be reached"
    )
