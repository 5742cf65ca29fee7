"""What may be wrong with the options of a feed, beside what its class says of its keys.

Nothing here connects anywhere: whether the source answers and the table exists shows once the feed runs, or in
`feedq doctor`. No message repeats the value of an option, because that may be a secret.
"""

from __future__ import annotations

import re
from typing import Any

from feedq.connectors.base import parse_options
from feedq.core.expectations import Expectation
from feedq.core.model import FeedSpec
from feedq.core.values import json_problems
from feedq.errors import InvalidInput
from feedq.sinks.base import parse_sink, target_of
from feedq.sinks.checkpoints import check_cursor
from feedq.sinks.event_time import event_time_finder

SECRET_OPTIONS = frozenset(
    (
        *("password", "passwd", "token", "nkey_seed", "credentials", "api_key"),
        *("authorization", "proxy-authorization", "cookie", "x-api-key"),
    )
)
"""Names of options, variables and headers that hold nothing but a secret, or one with a word before it."""

_REFERENCE = re.compile(r"\$\{(?:env|file):")
_USER_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:]*:(?P<password>[^\s/@]+)@")
_QUERY_PASSWORD = re.compile(r"://\S*?[?&](?:password|passwd)=(?P<password>[^&\s]+)", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")


def option_problems(spec: FeedSpec) -> list[str]:
    """What is wrong with the options of connector and sink, as such and beside one another."""
    found = []
    for path, what in json_problems({"source": spec.source, "sink": spec.sink}, _secret_problem):
        found.append(f"{path}: {what}")
    options = None
    try:
        options = parse_options(spec.connector, spec.source)
        check_cursor(options, spec.initial_cursor)
    except InvalidInput as error:
        found.append(str(error))
    try:
        sink = parse_sink(spec.sink)
        if options is not None:
            target = target_of(sink, options)
            if (lag := spec.expect.get(Expectation.MAX_EVENT_LAG)) is not None:
                event_time_finder(lag["at"], target)
    except InvalidInput as error:
        found.append(str(error))
    except ValueError as error:
        found.append(f"expect.{error}")
    return found


def _secret_problem(keys: tuple[Any, ...], value: Any) -> str | None:
    """Secrets are references under source.secrets, which its connector checks, and nowhere else."""
    if not isinstance(value, str) or keys[:2] == ("source", "secrets"):
        return None
    if _REFERENCE.search(value):
        return (
            "${env:…} and ${file:…} stand only under source.secrets; "
            "give the secret a name there and write {name} here"
        )
    instead = "put it under source.secrets as a reference and write {name} in its place"
    if keys[0] == "sink":
        instead = "name a sink, and set its URL as FEEDQ_SINKS__<NAME> on the workers"
    found = [*_USER_PASSWORD.finditer(value), *_QUERY_PASSWORD.finditer(value)]
    if any(not _PLACEHOLDER.fullmatch(match["password"]) for match in found):
        return f"holds a password in a URL; {instead}"
    is_secret = keys[0] == "source" and str(keys[-1]).lower() in SECRET_OPTIONS
    if is_secret and value and not _PLACEHOLDER.search(value):
        return f"would be stored and shown as it stands; {instead}"
    return None
