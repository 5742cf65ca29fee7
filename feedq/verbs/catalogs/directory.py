"""The ``directory`` catalog: all manifests below a directory, YAML or JSON.

Names that begin with a dot are left out, as those are that Kubernetes keeps beside a mounted ConfigMap.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import BYTES_MAX, CatalogOptions

SUFFIXES: Final = (".yaml", ".yml", ".json")


class DirectoryOptions(CatalogOptions):
    """Where the manifests are."""

    path: str
    """The directory; its folders are looked through as well."""


class DirectoryCatalog:
    """Reads all files of a directory."""

    Options: ClassVar[type[CatalogOptions]] = DirectoryOptions
    errors: ClassVar = (OSError,)

    def __init__(self, options: DirectoryOptions, _: Settings) -> None:
        self.where = options.path

    def contents(self) -> Iterator[tuple[str, bytes]]:
        root = Path(self.where)
        if not root.is_dir():
            raise CatalogUnavailable(f"{root}: is no directory")
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            is_hidden = any(part.startswith(".") for part in name.parts)
            if path.suffix in SUFFIXES and path.is_file() and not is_hidden:
                with path.open("rb") as file:
                    yield str(name), file.read(BYTES_MAX + 1)
