"""The data directory of `feedq up`: one user at a time, the same ports again, and a private state."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path

import pytest

from feedq.errors import Conflict, InvalidInput, Unavailable
from feedq.local.datadir import PORTS, DataDir, Ports, StackState
from feedq.local.process import free_port

STATE = StackState(
    4711, {"FEEDQ_DATABASE_URL": "postgresql://feedq:secret@127.0.0.1/feedq"}, "http://127.0.0.1:1"
)


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    (tmp_path / "data").mkdir()
    return DataDir(tmp_path / "data")


def test_a_second_user_of_a_directory_is_refused(data_dir: DataDir) -> None:
    data_dir.open()
    with pytest.raises(Conflict, match="is in use by process"):
        DataDir(data_dir.path).open()
    data_dir.close()
    again = DataDir(data_dir.path)
    again.open()
    again.close()


def test_the_state_is_readable_by_its_owner_alone_and_only_while_the_stack_runs(data_dir: DataDir) -> None:
    reader = DataDir(data_dir.path)
    with pytest.raises(Unavailable, match="no feedq up runs in"):
        reader.read_state()
    data_dir.open()
    with pytest.raises(Unavailable, match="not ready yet"):
        reader.read_state()
    data_dir.write_state(STATE)
    assert reader.read_state() == STATE
    mode = (data_dir.path / "stack.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    data_dir.close()
    with pytest.raises(Unavailable):
        reader.read_state()


def test_the_state_of_a_stack_that_was_killed_is_not_believed(data_dir: DataDir) -> None:
    (data_dir.path / "stack.json").write_text(json.dumps({"pid": 1, "settings": {}, "flower_url": ""}))
    with pytest.raises(Unavailable, match="no feedq up runs in"):
        data_dir.read_state()


def test_a_file_in_place_of_the_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is not a directory"):
        DataDir(tmp_path / "file").open()


def test_ports_are_the_same_again(data_dir: DataDir) -> None:
    first = {what: Ports(data_dir, base=None).choose(what) for what in PORTS}
    assert {what: Ports(data_dir, base=None).choose(what) for what in PORTS} == first
    assert len(set(first.values())) == len(PORTS)


def test_a_port_that_somebody_took_is_replaced(data_dir: DataDir) -> None:
    port = Ports(data_dir, base=None).choose("flower")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert Ports(data_dir, base=None).choose("flower") != port


@pytest.mark.parametrize("content", ["", "no json", '{"flower": "x", "source": 99999999}', "[1]"])
def test_a_damaged_memory_of_ports_is_forgotten(content: str, data_dir: DataDir) -> None:
    (data_dir.path / "ports.json").write_text(content)
    assert 0 < Ports(data_dir, base=None).choose("flower") < 65_536


def test_ports_count_from_a_base_and_a_taken_one_is_refused_by_name(data_dir: DataDir) -> None:
    base = free_port()
    ports = Ports(data_dir, base=base)
    assert ports.choose("postgres") == base
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base))
        taken.listen()
        with pytest.raises(InvalidInput, match=f"port {base} for postgres is taken"):
            ports.choose("postgres")
