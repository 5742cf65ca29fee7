"""The ``directory`` catalog: all manifests below a directory, YAML or JSON.

Names that begin with a dot are left out, as those are that Kubernetes keeps beside a mounted ConfigMap.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from feedq.errors import CatalogUnavailable
from feedq.settings import Settings
from feedq.verbs.catalogs.base import BYTES_MAX, CatalogOptions, CatalogReading, digest, reading_of_texts
from feedq.verbs.manifest.reader import ENTRIES_MAX

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

    def read(self, known: str | None) -> CatalogReading | None:
        try:
            contents = self._contents()
        except OSError as error:
            raise CatalogUnavailable(
                f"{error.filename or self._root}: cannot be read ({error.strerror})"
            ) from error
        version = digest(*(part for name, raw in contents for part in (name.encode(), raw)))
        return None if version == known else reading_of_texts(contents, version)

    def _contents(self) -> list[tuple[str, bytes]]:
        if not self._root.is_dir():
            raise CatalogUnavailable(f"{self._root}: is no directory")
        contents: list[tuple[str, bytes]] = []
        left = BYTES_MAX
        for path in sorted(self._root.rglob("*")):
            name = path.relative_to(self._root)
            is_hidden = any(part.startswith(".") for part in name.parts)
            if is_hidden or path.suffix not in SUFFIXES or not path.is_file():
                continue
            with path.open("rb") as file:
                raw = file.read(left + 1)
            left -= len(raw)
            if left < 0 or len(contents) >= ENTRIES_MAX:
                raise CatalogUnavailable(
                    f"{self._root}: holds more than {BYTES_MAX} bytes or {ENTRIES_MAX} files"
                )
            contents.append((str(name), raw))
        return contents
