"""Mutants of backfills, and of fields that no column takes; see `listed`."""

from __future__ import annotations

BROKEN: dict[tuple[str, ...], tuple[tuple[str, str, str], ...]] = {
    ("tests/contract/test_sink_drift.py",): (
        (
            "a column that somebody adds stays empty",
            "self._catalog.refresh([target])\n        if wrong :=",
            "if wrong :=",
        ),
    ),
    ("tests/contract/test_store_backfills.py",): (
        (
            "the end of a backfill is forgotten without being written down",
            "        FROM ended\n    )\n    DELETE FROM feedq.feed f USING ended",
            "        FROM ended WHERE false\n    )\n    DELETE FROM feedq.feed f USING ended",
        ),
        (
            "a backfill that has finished is placed again",
            "'no_capacity', 'no_match', 'finished')",
            "'no_capacity', 'no_match')",
        ),
        (
            "a backfill is begun again by the key of one that was",
            "if backfill.key is not None and _is_known(c, locked.id, backfill.key):",
            "if False:",
        ),
    ),
    ("tests/live/test_runner_waiting.py",): (
        (
            "a source that does not answer is not named",
            "self._unanswered = tell_if_unanswered(what.options, self._waits)",
            "pass",
        ),
        (
            "a feed that is connected is said to wait",
            "        self._stop_telling()\n        self._retries.connected()",
            "        self._retries.connected()",
        ),
    ),
    ("tests/unit/test_record_hints.py",): (
        (
            "a header is judged by itself, before there are records",
            "if len(records) > 1 and (odd :=",
            "if (odd :=",
        ),
    ),
    ("tests/live/test_runner_notices.py",): (
        (
            "a list that lands as one row is not told",
            'self._context.on_notice("records", said)',
            "pass",
        ),
    ),
    ("tests/live/test_runner_backfills.py",): (
        (
            "a batch that goes beyond the end of a backfill lands whole",
            "kept = self.options.cut(batch, self.ends_at, cursor)",
            "kept = batch",
        ),
        (
            "who takes over a backfill whose end has landed asks its source again",
            "self._read_whole is batch_queue or self._backfill_end.is_reached(",
            "self._read_whole is batch_queue and self._backfill_end.is_reached(",
        ),
    ),
}
