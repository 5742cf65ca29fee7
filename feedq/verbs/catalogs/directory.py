"""The ``directory`` catalog: all manifests below a directory, YAML or JSON.

Names that begin with a dot are left out, as those are that Kubernetes keeps beside a mounted ConfigMap.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import BYTES_MAX, CatalogContent, CatalogOptions

SUFFIXES: Final = (".yaml", ".yml", ".json")


class DirectoryOptions(CatalogOptions):
    """Where the manifests are."""

    path: str
    """The directory; its folders are looked through as well."""


class DirectoryCatalog:
    """Reads all files of a directory."""

    Options: ClassVar[type[CatalogOptions]] = DirectoryOptions

    def __init__(self, options: DirectoryOptions, _: Settings) -> None:
        self._root = Path(options.path)

    def read(self, known: str | None) -> CatalogContent:
        return CatalogContent(self._files())

    def _files(self) -> Iterator[tuple[str, bytes]]:
        if not self._root.is_dir():
            raise CatalogUnavailable(f"{self._root}: is no directory")
        for path in sorted(self._root.rglob("*")):
            name = path.relative_to(self._root)
            is_hidden = any(part.startswith(".") for part in name.parts)
            if is_hidden or path.suffix not in SUFFIXES or not path.is_file():
                continue
            try:
                with path.open("rb") as file:
                    yield str(name), file.read(BYTES_MAX + 1)
            except OSError as error:
                raise CatalogUnavailable(f"{path}: cannot be read ({error.strerror})") from error
