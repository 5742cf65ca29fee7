"""`feedq feed test`: does a feed work from here, and how would its records land?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedq.cli.invocation import Invocation, pass_invocation
from feedq.cli.output import answer, styled_step
from feedq.errors import FeedqError, InvalidInput, NotFound

if TYPE_CHECKING:
    from feedq.core.model import JSON, FeedSpec
    from feedq.sinks.base import Preview
    from feedq.verbs.trial import Trial

VALUE_WIDTH = 100
"""Characters of a value on a terminal; --json has all of it."""


@click.command("test")
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
@click.option("--cursor", metavar="JSON", help="Begin after this cursor instead of where the source begins.")
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
    from feedq.verbs.trial import Wanted, try_feed
    from feedq.verbs.wording import printable

    invocation.keep_log_quiet()
    spec = invocation.store.feeds.get(name).spec if path is None else _from_file(path, name)
    wanted = Wanted(records=records, timeout_s=timeout_s, cursor=_cursor(cursor))
    trial = try_feed(
        spec,
        invocation.settings,
        invocation.clock,
        wanted=wanted,
        on_waiting=lambda why: click.echo(f"{printable(why)} …", err=True),
    )
    if infer:
        _propose(invocation, spec, trial)
        return
    document = {
        "name": name,
        "ok": trial.ok,
        "steps": [{"step": s.name, "outcome": s.outcome, "detail": s.detail} for s in trial.steps],
        "records": [_document(preview) for preview in trial.records],
        "cursor": trial.cursor,
    }
    answer(invocation, document, lambda: _write(trial))
    if not trial.ok:
        click.get_current_context().exit(1)


def _propose(invocation: Invocation, spec: FeedSpec, trial: Trial) -> None:
    """Prints a manifest; the steps of the trial go to standard error. A table that is not there is no trouble."""
    from feedq.core.model import TargetState
    from feedq.verbs import documents
    from feedq.verbs.manifest import feed_entry
    from feedq.verbs.wording import printable
    from feedq.worker.first_records import proposed

    for step in trial.steps:
        click.echo(styled_step(step.name, step.outcome, printable(step.detail)), err=True)
    if not trial.records:
        raise FeedqError(f"feed {spec.name!r}: nothing can be proposed without a record")
    found = proposed(spec, [preview.record for preview in trial.records])
    entry = feed_entry.plain_feed(found)
    if found.target_state is TargetState.RUNNING:
        del entry["target_state"]  # it is what a feed does unless it is told otherwise
    manifest = {"feeds": [entry]}
    answer(invocation, manifest, lambda: click.echo(documents.dump(manifest), nl=False))


def _from_file(path: Path, name: str) -> FeedSpec:
    from feedq.verbs.manifest import reader

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from None
    specs = {spec.name: spec for spec in reader.parse_specs(text, origin=str(path))}
    if name not in specs:
        raise NotFound(f"{path}: declares no feed {name!r}; it has {', '.join(sorted(specs)) or 'none'}")
    return specs[name]


def _cursor(text: str | None) -> JSON:
    if text is None:
        return None
    try:
        cursor: JSON = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--cursor: is no JSON ({error}); a text needs quotes, as in '\"abc\"'") from None
    return cursor


def _document(preview: Preview) -> dict[str, Any]:
    return {
        "record": preview.record.decode("utf-8", "replace"),
        "columns": dict(preview.columns),
        "error": preview.error,
    }


def _write(trial: Trial) -> None:
    from feedq.verbs.wording import as_json, printable

    for step in trial.steps:
        click.echo(styled_step(step.name, step.outcome, printable(step.detail)))
    for number, preview in enumerate(trial.records, 1):
        _write_record(number, preview)
    if trial.records:
        cursor = f" Cursor after these: {printable(as_json(trial.cursor))}"
        click.echo("\nNothing was imported." + ("" if trial.cursor is None else cursor))


def _write_record(number: int, preview: Preview) -> None:
    from feedq.verbs.wording import printable

    click.echo(f"\n{number}. {_short(preview.record.decode('utf-8', 'backslashreplace'))}")
    width = max(map(len, preview.columns), default=0)
    for column, text in preview.columns.items():
        click.echo(f"   {printable(column).ljust(width)}  {'NULL' if text is None else _short(text)}")
    if preview.error is not None:
        click.echo(f"   would go to the dead letters: {printable(preview.error)}")


def _short(text: str) -> str:
    from feedq.verbs.wording import cut, printable

    return cut(printable(text), VALUE_WIDTH)
