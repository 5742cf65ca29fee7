"""The data directory of `feedq up`: one user at a time, the same ports again, and a private state."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from feedq.errors import Conflict, InvalidInput, Unavailable
from feedq.local.datadir import DataDir
from feedq.local.process import free_port

SETTINGS = {"FEEDQ_DATABASE_URL": "postgresql://feedq:secret@127.0.0.1/feedq"}


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    (tmp_path / "data").mkdir()
    return DataDir(tmp_path / "data")


def test_a_second_user_of_a_directory_is_refused_and_leaves_the_first_alone(data_dir: DataDir) -> None:
    with data_dir.held():
        data_dir.write_settings(SETTINGS)
        with pytest.raises(Conflict, match="is in use by process"), DataDir(data_dir.path).held():
            pass
        assert DataDir(data_dir.path).settings() == SETTINGS
    with DataDir(data_dir.path).held():
        pass


def test_settings_are_readable_by_their_owner_alone_and_only_while_the_stack_runs(data_dir: DataDir) -> None:
    reader = DataDir(data_dir.path)
    with pytest.raises(Unavailable, match="no feedq up runs in"):
        reader.settings()
    with data_dir.held():
        with pytest.raises(Unavailable, match="not ready yet"):
            reader.settings()
        data_dir.write_settings(SETTINGS)
        assert reader.settings() == SETTINGS
        assert stat.S_IMODE((data_dir.path / "stack.json").stat().st_mode) == 0o600
    with pytest.raises(Unavailable):
        reader.settings()


def test_the_settings_of_a_stack_that_was_killed_are_not_believed(data_dir: DataDir) -> None:
    data_dir.write_settings(SETTINGS)
    with pytest.raises(Unavailable, match="no feedq up runs in"):
        data_dir.settings()


def test_a_port_that_somebody_took_is_replaced(data_dir: DataDir) -> None:
    port = data_dir.port("flower")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert data_dir.port("flower") != port


@pytest.mark.parametrize("content", ["", "no json", '{"flower": "x"}', '{"flower": 99999999}', "[1]", "1"])
def test_a_damaged_memory_of_ports_is_forgotten(content: str, data_dir: DataDir) -> None:
    (data_dir.path / "ports.json").write_text(content)
    assert 0 < data_dir.port("flower") < 65_536


def test_ports_count_from_a_base_and_a_taken_one_is_refused_by_name(data_dir: DataDir) -> None:
    base = free_port()
    counted = DataDir(data_dir.path, port_base=base)
    assert counted.port("postgres") == base
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base))
        taken.listen()
        with pytest.raises(InvalidInput, match=f"port {base} for postgres is taken"):
            counted.port("postgres")
