"""What somebody declared, as people may see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from feedq.core.model import JSON, FeedView
from feedq.core.passwords import mask_url
from feedq.core.schedule.spec import is_secret

MASK = "***"
LEASE_TEXTS = ("dead_letter_error", "last_error", "sink_error", "blame", "event_fault")
"""What a lease has of others' words."""


def masked(value: Any) -> JSON:
    """Masks the password of every URL in plain JSON, should one have got in by another way."""
    if isinstance(value, str):
        return mask_url(value)
    if isinstance(value, Mapping):
        return {key: masked(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner) for inner in value]
    plain: JSON = value
    return plain


def masked_mapping(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: masked(inner) for key, inner in given.items()}


def masked_view(view: FeedView) -> FeedView:
    """A feed as people may see it: in its declaration, and in what others have written about it."""
    feed, lease = view.feed, view.lease
    options = {"source": masked_mapping(feed.spec.source), "sink": masked_mapping(feed.spec.sink)}
    said: dict[str, Any] = {
        name: mask_url(text) for name in LEASE_TEXTS if (text := getattr(lease, name)) is not None
    }
    return replace(
        view,
        feed=replace(feed, spec=feed.spec.model_copy(update=options)),
        lease=replace(lease, **said) if said else lease,
        because=None if view.because is None else mask_url(view.because),
    )


def shown(value: Any) -> JSON:
    """Shows arguments of a job as people may see them: what a name gives away as a secret is masked.

    Declaring one is refused already; this is for those that got in by another way. A reference shows as it is.
    """
    if isinstance(value, Mapping):
        return {
            str(key): MASK if is_secret(str(key), inner) else shown(inner) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [shown(inner) for inner in value]
    return masked(value)
