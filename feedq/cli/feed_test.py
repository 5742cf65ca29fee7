"""`feedq feed test`: does a feed work from here, and how would its records land?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from feedq.cli.apply import read_manifests
from feedq.cli.invocation import Command, Invocation, pass_invocation
from feedq.cli.lazily import lazily
from feedq.cli.options import read_cursor
from feedq.cli.output import answer
from feedq.errors import FeedqError, NotFound

with lazily():
    from feedq.core import model
    from feedq.sinks import base as sinks_base
    from feedq.verbs import documents, trial, wording


VALUE_WIDTH = 100
"""Characters of a value on a terminal; --json has all of it."""
COLOURS = {"ok": "green", "failed": "red", "warn": "yellow"}
"""Of the outcomes of steps."""


@click.command("test", cls=Command)
@click.argument("name")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the feed from this manifest instead of the control database.",
)
@click.option(
    "--records", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many to show."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, max=3_600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the connection and the records.",
)
@click.option("--cursor", help="Begin after this cursor instead of where the source begins.")
@click.option(
    "--infer",
    is_flag=True,
    help="Propose columns, types and how to cut records up, from the first of them, as a manifest.",
)
@pass_invocation
def feed_test(
    invocation: Invocation,
    *,
    name: str,
    path: Path | None,
    records: int,
    timeout_s: float,
    cursor: str | None,
    infer: bool,
) -> None:
    """Connect, show the first records and how they would land; import nothing.

    It runs here and not on a worker: secrets, network and installed connectors are those of this machine. The
    feed need not be declared yet (-f), and may be running meanwhile.

    \b
    Example:
      feedq feed test acme/orders --records 3
      feedq feed test acme/orders -f feeds.yaml
      feedq feed test acme/orders -f feeds.yaml --infer > typed.yaml
    """
    invocation.keep_log_quiet()
    spec = invocation.store.feeds.get(name).spec if path is None else _from_file(path, name)
    made = trial.try_feed(
        spec,
        invocation.settings,
        invocation.clock,
        records=records,
        timeout_s=timeout_s,
        cursor=None if cursor is None else read_cursor(cursor),
        on_waiting=lambda why: click.echo(f"{wording.printable(why)} …", err=True),
    )
    if infer:
        _propose(invocation, spec, made)
        return
    document = {
        "name": name,
        "ok": made.ok,
        "steps": made.steps,
        "records": [_document(preview) for preview in made.records],
        "cursor": made.cursor,
    }
    answer(invocation, document, lambda: _write(made))
    if not made.ok:
        click.get_current_context().exit(1)


def _propose(invocation: Invocation, spec: model.FeedSpec, made: trial.Trial) -> None:
    """Prints a manifest; the steps of the trial go to standard error. A table that is not there is no trouble."""
    from feedq.worker.first_records import proposed

    _write_steps(made, err=True)
    if not made.records:
        raise FeedqError(f"feed {spec.name!r}: nothing can be proposed without a record")
    found = proposed(spec, [preview.record for preview in made.records])
    if found.target_state is model.TargetState.RUNNING:
        found = found.model_copy(update={"target_state": None})
    manifest = {"feeds": [found.plain()]}
    answer(invocation, manifest, lambda: click.echo(documents.dump(manifest), nl=False))


def _from_file(path: Path, name: str) -> model.FeedSpec:
    specs: dict[str, model.FeedSpec] = {
        feed.spec.name: feed.spec for feed in read_manifests([str(path)]).feeds
    }
    if name not in specs:
        raise NotFound(f"{path}: declares no feed {name!r}; it has {', '.join(sorted(specs)) or 'none'}")
    return specs[name]


def _document(preview: sinks_base.Preview) -> dict[str, Any]:
    return {
        "record": preview.record.decode("utf-8", "replace"),
        "columns": dict(preview.columns),
        "error": preview.error,
    }


def _write_steps(made: trial.Trial, *, err: bool = False) -> None:
    for step in made.steps:
        shown = click.style(step.outcome.ljust(7), fg=COLOURS[step.outcome])
        click.echo(f"{shown}  {step.step.ljust(11)}  {wording.printable(step.detail)}".rstrip(), err=err)


def _write(made: trial.Trial) -> None:
    _write_steps(made)
    for number, preview in enumerate(made.records, 1):
        _write_record(number, preview)
    if made.records:
        cursor = f" Cursor after these: {wording.printable(wording.as_json(made.cursor))}"
        click.echo("\nNothing was imported." + ("" if made.cursor is None else cursor))


def _write_record(number: int, preview: sinks_base.Preview) -> None:
    click.echo(f"\n{number}. {_short(preview.record.decode('utf-8', 'backslashreplace'))}")
    width = max(map(len, preview.columns), default=0)
    for column, text in preview.columns.items():
        click.echo(f"   {wording.printable(column).ljust(width)}  {'NULL' if text is None else _short(text)}")
    if preview.error is not None:
        click.echo(f"   would go to the dead letters: {wording.printable(preview.error)}")


def _short(text: str) -> str:
    return wording.cut(wording.printable(text), VALUE_WIDTH)
