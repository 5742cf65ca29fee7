"""The sdist and the wheel: what is in them, what PyPI would say, and feedq as it runs from the wheel alone."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import feedq
from tests.acceptance.test_up import ALL_LAND, STOP_S, directory, plain_env, running
from tests.platforms import ROOT

pytestmark = pytest.mark.timeout(300)

NOT_BUILT_FROM = (".*", "build", "dist", "*.egg-info", "__pycache__", "bench", "docs", "examples", "tests")


def source_files() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "feedq").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        words, cwd=cwd, env=plain_env(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both. They are built from a copy: building writes beside the sources."""
    place = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, place / "source", ignore=shutil.ignore_patterns(*NOT_BUILT_FROM))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist", cwd=place / "source")
    return place / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"feedq-{feedq.__version__}-py3-none-any.whl"


def test_the_version_stands_in_one_place(built: Path, wheel: Path) -> None:
    assert {file.name for file in built.iterdir()} == {wheel.name, f"feedq-{feedq.__version__}.tar.gz"}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"feedq-{feedq.__version__}.dist-info"
    assert {name for name in names if not name.startswith(about)} == source_files()
    assert f"{about}/licenses/LICENSE" in names


def test_the_sdist_holds_what_the_wheel_is_built_from(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {m.name.partition("/")[2] for m in opened.getmembers() if m.isfile()}
    beside = {name for name in names - source_files() if not name.startswith("feedq.egg-info/")}
    assert source_files() <= names
    assert beside == {
        *("CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "SECURITY.md"),
        *("beat_schedule.py", "constraints.txt", "pyproject.toml", "setup.cfg"),
    }


def test_twine_finds_nothing(built: Path) -> None:
    run(Path(sys.executable).with_name("twine"), "check", "--strict", *sorted(built.iterdir()), cwd=built)


def needed(wheel: Path, extra: str) -> set[str]:
    """The distributions that the wheel asks for with an extra, and all that those ask for."""
    with zipfile.ZipFile(wheel) as opened:
        about = opened.read(f"feedq-{feedq.__version__}.dist-info/METADATA").decode()
    found: set[tuple[str, str]] = set()
    asked = [(Requirement(v), extra) for k, v in _headers(about) if k == "Requires-Dist"]
    while asked:
        requirement, of_extra = asked.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": of_extra}):
            continue
        name = canonicalize_name(requirement.name)
        for one in {"", *requirement.extras}:
            if (name, one) not in found:
                found.add((name, one))
                asked += [(Requirement(line), one) for line in metadata.requires(name) or ()]
    return {name for name, _ in found}


def _headers(text: str) -> Iterator[tuple[str, str]]:
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(": ")
        yield name, value


def link(distribution: str, site: Path) -> None:
    """Put a distribution that is installed here into another environment, file by file."""
    for file in metadata.files(distribution) or ():
        real = Path(str(file.locate()))
        if ".." in file.parts or real.suffix == ".pyc" or not real.exists():
            continue
        compiled = Path(importlib.util.cache_from_source(str(real))) if real.suffix == ".py" else real
        for source in {real, compiled}:
            place = site / source.relative_to(real.parents[len(file.parts) - 1])
            if source.exists() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(source)


@pytest.fixture(scope="module")
def installed(wheel: Path, servers_dir: Path) -> Path:
    """The bin directory of an environment with the wheel and what it asks for, and nothing else.

    What it asks for is taken from here, so that no registry is needed: the test is of the wheel, not of pip.
    """
    place = servers_dir / "wheel"
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    (site,) = (place / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    for distribution in needed(wheel, "embedded"):
        link(distribution, site)
    for entry in metadata.Distribution.at(site / f"feedq-{feedq.__version__}.dist-info").entry_points:
        if entry.group == "console_scripts":
            script = python.with_name(entry.name)
            script.write_text(f"#!{python}\nfrom {entry.module} import {entry.attr}\n{entry.attr}()\n")
            script.chmod(0o755)
    return python.parent


def test_the_command_of_the_wheel_says_its_version(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "feedq", "--version", cwd=tmp_path) == f"feedq, version {feedq.__version__}\n"
    where = run(installed / "python", "-c", "import feedq; print(feedq.__file__)", cwd=tmp_path).strip()
    assert where.startswith(str(installed.parent))


def test_the_demo_runs_from_the_wheel(installed: Path) -> None:
    with (
        directory() as where,
        running(where, "--demo", "--workers=1", "--beats=1", feedq=[str(installed / "feedq")]) as up,
    ):
        up.says(ALL_LAND.format(1))
        up.process.terminate()
        assert up.exits(limit_s=STOP_S) == 0
