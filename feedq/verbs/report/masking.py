"""What somebody declared, as people may see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedq.core.model import JSON
from feedq.core.passwords import mask_url
from feedq.core.schedule.arguments import is_secret

MASK = "***"


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
