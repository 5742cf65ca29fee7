"""Classes that packages install by an entry point, such as connectors, and the options that people give them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from feedq.core.values import did_you_mean, model_at
from feedq.errors import InvalidInput

M = TypeVar("M", bound=BaseModel)


def installed(group: str) -> list[str]:
    """What is installed of a group of entry points."""
    return sorted(entry.name for entry in entry_points(group=group))


def load_installed(group: str, name: str, what: str) -> Any:
    """Raises `InvalidInput` when there is none of that name, or it cannot be imported; ``what`` it would be."""
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except Exception as error:
            is_extra = isinstance(error, ModuleNotFoundError) and entry.value.startswith("feedq.")
            hint = f"; pip install 'feedq[{name}]'" if is_extra else ""
            raise InvalidInput(
                f"{what} {name!r} ({entry.value}) cannot be imported: {error}{hint}"
            ) from error
    known = installed(group)
    near = did_you_mean(name, known)
    raise InvalidInput(f"unknown {what} {name!r}; installed are: {', '.join(known) or 'none'}{near}")


def valid_options(where: str, options: type[M], given: Mapping[str, Any]) -> M:
    """Raises `InvalidInput`, naming each option that is wrong and ``where`` that is."""
    try:
        return options.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidInput(explain_options(where, error, options)) from None


def explain_options(where: str, error: ValidationError, options: type[BaseModel]) -> str:
    """Says in one sentence what is wrong with each option, without its value: that may be a secret."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        path = ".".join([where, *(str(part) for part in problem["loc"])])
        if problem["type"] == "extra_forbidden":
            known = model_at(options, problem["loc"][:-1])
            hint = f"; known are {', '.join(sorted(known.model_fields))}" if known else ""
            hint += did_you_mean(str(problem["loc"][-1]), known.model_fields) if known else ""
            lines.append(f"{path}: unknown option{hint}")
        else:
            # pydantic's words for "raised by our own validator", which says enough by itself.
            lines.append(f"{path}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)
