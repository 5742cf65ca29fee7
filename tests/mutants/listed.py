"""The fixed list of mutants: changes of single places, each of which the tests named must notice.

A text stands once in the whole package, wherever its module is: code may move without a change here. When it is
rewritten, the mutant is, too. One is only given up with the idea that it breaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One place broken."""

    what: str
    """What the code does no longer, or wrongly."""
    text: str
    instead: str
    tests: tuple[str, ...]


REMOVED, ADDED = re.compile(r"\[-(.*?)-\]", re.DOTALL), re.compile(r"\{\+(.*?)\+\}", re.DOTALL)


def both_sides(change: str) -> tuple[str, str]:
    """The text before and after a change that is written as ``git diff --word-diff`` shows it."""
    return REMOVED.sub(r"\1", ADDED.sub("", change)), ADDED.sub(r"\1", REMOVED.sub("", change))


BROKEN = r"""
tests/unit/test_duty.py
    what happens while a duty is done is forgotten
                [-self._is_woken = False
                -]try:
                    pause_s = self._do(){+
                    self._is_woken = False+}
    a duty that fails is tried again without a pause
        pause_s = [-RETRY_S-]{+0.0+}
tests/unit/test_watch.py
    one answer proves that a thread is stuck inside the driver
        FOUND_IDLE = [-3-]{+1+}
tests/unit/test_beat.py
    the pass under way serves what changes meanwhile
        or self._last_pass.[-running() or self._last_pass.-]done()
tests/unit/test_worker_core.py
    trust begins when the heartbeat is answered
        TrustWindow.after_heartbeat(sent_at=[-sent_at-]{+now+}, ttl_s=ttl_s)
    an answer that comes too late resumes the worker
        if self.is_stalled[- or not self._trust.holds(now)-]:
                    return []
    a worker whose loop stands still beats on
        if [-self.is_stalled or -]not self._trust.holds(now):
    feeds stream on when trust has ended
        if [-self.state is SessionState.SERVING and not self._trust.holds(now)-]{+False+}:
    the loss of the last database session is no doubt
        [-if self.live_connections:
                    -]return []
                return self._end_trust
    feeds of a session that is over run on
        lost[- = self._lose(list(self._running.values()), now)-]{+: list[Action] = []+}
    what was granted to an earlier session is started
        if [-worker_id != self.worker_id-]{+False+}:
                    # Declared gone while
    what is granted to a worker that leaves is started
                elif [-self.is_draining-]{+False+}:
                    for claim, feed in granted:
    a message that comes again is taken again
        if [-feed.message is not None-]{+False+}:
                    return [DropMessage
    an earlier stream of the feed goes on beside the later
        [-actions += self._lose([before], now)-]{+pass+}
    a stop request that is over leaves the feed running
        for key in [-before - self._asked-]{+()+} if (feed := self._holder(key))
    a lease that nobody runs is kept
        unrun = set[-(held) - {feed.key for feed in (*self._running.values(), *self._apart())}-]{+[FeedKey]()+}
    a feed whose lease the database does not know runs on
        lost = [[-feed for feed in self._running.values() if feed.key not in held-]]
    a lost feed that goes on reading is not cut off
        return [[-LoseFeeds(keys, overdue=True)] if late else [-]]
    a worker that leaves lets go of all at once
        for _ in range([-min(STOPS_TOGETHER, -]len(drain.waiting)[-)-])
tests/unit/test_lease.py
    trust is anchored where the heartbeat is answered, by a second
        until=sent_at + {+1.0 + +}ttl_s * (1 - TRUST_MARGIN)
    trust has no margin
        until=sent_at + ttl_s[- * (1 - TRUST_MARGIN)-]
    trust holds at its very end
        return monotonic <{+=+} self.until
    an outage of the database makes all workers look gone
        if [-now < served_since + timedelta(seconds=ttl_s)-]{+False+}:
    a worker without a session is gone at the first look
        crashed = [-worker.suspected_at is not None and -]not has_session
    an edit of a running feed changes nothing
        LeaseState.STOPPING) and lease.generation [-<-]{+>+} feed.stream_generation
tests/contract/test_store_workers.py
    a heartbeat from the future counts in full
        expires_at = [-least(w.heartbeat_at, feedq.clock()) + (w.expires_at - w.heartbeat_at)-]{+w.expires_at+}
tests/contract/test_store_moves.py
    an owner that was asked to let go is waited for without end
        WHERE [-state = 'stopping' AND due_at <= feedq.clock()-]{+false+} ORDER
tests/unit/test_control.py
    a later pass that fails keeps the messages of an earlier one
        if report.assignments{+ and not report.more+}:
                    dispatch(report.assignments)
tests/contract/test_sink_conformance.py::TestPostgresSink
    a commit does not look at the epoch
        EPOCH_MATCHES: Final = "[-c.epoch = m.epoch-]{+true+}"
    a commit does not look which one it continues
        "([-m.commit = 0 OR c.commit_id = (%(commits)s::uuid[])[m.commit]-]{+%(commits)s::uuid[] IS NOT NULL+})"
    a fence leaves the epoch
        SET epoch = [-excluded-]{+c+}.epoch, owner
    a fence leaves the commit
        feed = excluded.feed, commit_id = [-excluded-]{+c+}.commit_id,
    two workers may fence one epoch
        [-(c.epoch = excluded.epoch AND c.owner = excluded.owner)-]{+c.epoch = excluded.epoch+}
    an old epoch may fence
        WHERE [-c.epoch < excluded.epoch-]{+true+} OR
    dead letters come after the commit
                    session.{+commit()
                    session.+}write_dead_letters(self._dead)
                session.commit()
    a commit whose answer was lost counts as refused
        self._unknown = [-UnknownCommit(writes, written, session.number)-]{+None+}
    a commit that happened is done again
        [-if (settled := self._settle(writes)) is not None:
                    return settled-]{+self._settle(writes)+}
                groups
    a commit answers for batches that were no part of it
        return all([-mine.get(write.key) == write-]{+write.key in mine+} for write in writes)
    a changed cursor leaves the commit that its owner continues
        "commit_id": str({+own.commit_id if own else +}uuid4()),
                "is_given": True,
    a checkpoint is changed before it is judged whether it may be
            {+session.commit()
            session.begin()
            +}change.judge()
tests/contract/test_sink_conformance.py::TestSqlSinkOnSqlite
    a commit to SQLite does not look at the epoch
        if {+found and +}write.key not in found
    a commit to SQLite does not look which one it continues
        [-or (write.continues is not None and found[write.key] != str(write.continues))-]
    a fence in SQLite leaves the epoch
        "installation", "commit_id", "owner"[-, "epoch"-])}
    a fence in SQLite leaves the commit
        "installation", "[-commit_id", "-]owner", "epoch")}
    an old epoch may fence in SQLite
        raises = or_(new.epoch {+< old.epoch, new.epoch +}> old.epoch,
    a lost answer of SQLite counts as refused
        return [-self.scope(error) in (ErrorScope.LOCKED, ErrorScope.DATA)-]{+True+}
    a checkpoint in SQLite moves in a transaction of its own
        self.execute(self.upsert(checkpoint, CHECKPOINT_KEY, _advanced), rows){+
                self._commit()
                self.begin()+}
    an attempt that was refused is not undone
        if [-not self.is_broken and self.can_undo(error)-]{+self.is_broken+}:
tests/contract/test_store_leases.py
    what stops can be claimed again
        locked.worker_id = owner AND locked.state [-= 'assigned'-]{+IN ('assigned', 'stopping')+}
    an assignment of another worker may be claimed
        locked.[-worker_id = owner AND locked.-]state = 'assigned' AND w.state = 'active'
    an assignment is claimed twice
        locked.worker_id = owner AND [-locked.state = 'assigned' AND -]w.state = 'active'
    a feed is assigned under the epoch that it had
        state = 'assigned', epoch = l.epoch[- + 1-],
    a claim finds its lease whatever the epoch
        SELECT l.* FROM given CROSS JOIN LATERAL (
                    SELECT * FROM feedq.lease l WHERE l.feed_id = given.feed_id[- AND l.epoch = given.epoch-]
    a release finds its lease whatever the epoch
        l.reason AS before
                FROM given CROSS JOIN LATERAL (
                    SELECT * FROM feedq.lease l WHERE l.feed_id = given.feed_id[- AND l.epoch = given.epoch-]
    the owner after a restored database has the epoch that the sink refuses
        epoch = [-coalesce(held.raised_to, l.epoch)-]{+l.epoch+}
    a report finds its lease whatever the epoch
        l.feed_id = given.feed_id [-AND l.epoch = given.epoch -]OFFSET 0
    what was edited while it ran is not looked at again
        OR ([-f.stream_generation > l.generation-]{+false+}
tests/contract/test_store_quarantine.py
    a lease is handed over that the worker does not hold
        l.epoch = hand_over.epoch[- AND l.worker_id = owner-]
    a lease is handed over that the worker was asked to release
                [-AND l.state = 'running' -]FOR UPDATE;
            IF NOT FOUND
tests/contract/test_store_workers.py
    a worker that is gone may beat again
        WHERE id = session [-AND state <> 'gone'
            -]RETURNING *
    a heartbeat clears no suspicion
                [-suspected_at = NULL, -]feeds
tests/contract/test_store_races.py
    two passes at a time
        IF [-NOT pg_try_advisory_xact_lock(x'FEED0003'::bigint)-]{+false+} THEN
tests/contract/test_store_passes.py
    a worker is gone and its feeds stay with it
        RETURN [-feedq_1.free(workers, '{assigned,running,stopping}', 'worker_gone')-]{+0+}
    what failed is placed at once
        AND l.due_at IS NOT NULL[- AND l.due_at <= feedq.now()-]
    an assignment is overdue at once
        WHERE state = 'assigned'[- AND due_at <= feedq.now()-]
tests/contract/test_sink_postgresql_faults.py
    a checkpoint that somebody has locked counts as lost
        [-self._postponed[write.key] = "its checkpoint is locked"-]{+pass+}
    what a table raises about one record is blamed on the table
        if [-len(refused) + len(left) < len(all_) or -]not self._failures:
tests/contract/test_sink_postgresql_records.py
    default rows are never looked at, whatever the server has refused
        Detour([-*BAD_TEXT if self.rows.skips_checks else ()-])
    a flood of bad records is sorted out in everybody's transaction
        [-SET_ASIDE_MAX if briefly else -]None
    what one attempt has staged is inserted again by the next
        ON COMMIT DELETE ROWS[-; DELETE FROM {0}-]
tests/contract/test_sink_conformance.py::TestPostgresTables
    a table that has changed is written as it was
        [-        session.check_unchanged(targets)
        -]
tests/unit/test_sinks_attempts.py
    a commit that another one followed has landed
        landed = {write.key for write, [-last in known if last.commit_id == written.commit_id-]{+_ in known+}}
    what was lost counts as untouched
        [-write.continues in (None, self.commit_id)-]{+True+}
    some landed, so none did
        if [-not landed and -]any(last.is_left_by(write)
    of a refused half the rest is left out
        sizes += [len(part) [-- len(part) -]// 2, len(part) // 2]
tests/live/test_runner.py
    a cursor that a person gave is told as a sink that went back
        if [-not fenced.is_given-]{+True+}:
    the epoch that a sink knows of is not told
        again_s, attempts, said[-, sink_epoch=error.sink_epoch-])
tests/live/test_writer.py
    what a stopped feed has brought lands
        [-            for queue in [queue for queue in group if queue.broken is not None]:
                        del group[queue]
        -]
    a feed in trouble takes the others with it
        if [-written.postponed-]{+False+}:
                    self._put_apart(
    later batches of a feed pass the earlier
        batches = group[queue] = queue.[-oldest(room)-]{+waiting[-1:]+}
    what is committed is never acknowledged
        for acknowledge in [-answer.on_committed-]{+()+}:
    a feed that is not landed is not told
        if [-landed is None-]{+False+}:
                lost = (
tests/unit/test_schedule_cron.py
    a fixed time fires twice in a fold
        elif first < second[- and self.repeats-]:
    a time in a gap fires too early
        first = [-_after_gap(wall, clock)-]{+second+}
    what repeats fires in a gap
        [-if self.repeats:
                            continue
        -]
    the second pass of a fold is left out by who looks during the first
        begin.replace(tzinfo=None)[- - back-]
    a tick fires twice
        [-if moment > last:
                        last = moment
                        -]yield moment
tests/unit/test_schedule_ticks.py
    the last day of a range has ticks
        return spans[place][1] [-+ _DAY -]if place
    jitter reaches the next tick
        [-span = min(span, following - tick)-]{+pass+}
    the end of a schedule has a tick
        takewhile(lambda tick: tick <{+=+} end, found)
    of an interval the tick at the very moment comes again
        (after - self.anchor) // self.period[- + 1-]
tests/unit/test_schedule_due.py
    the oldest misfires are made up for
        if len(kept) <= keep[- and kept[0] >= oldest-]:
    of many misfires one is lost
        missed.is_full = [-True-]{+False+}
    a resumed schedule makes up for its pause
        and schedule.spec.resume is {+not +}ResumePolicy.SKIP:
    skip lets runs overlap that wait
        case Overlap.SKIP if unfinished.[-waiting or unfinished.-]running:
    a buffer takes one more
        case Overlap.BUFFER_ALL if unfinished.waiting >[-=-] spec.buffer_max:
    what has missed its deadline is fired
        if [-start_by is not None and start_by < self._now-]{+False+}:
tests/contract/test_api_refusals.py
    a feed that has just been given to another tenant is changed
        [-WHEN f.tenant <> of_tenant THEN 'foreign' -]END
tests/contract/test_store_grants.py
    a worker may declare feeds
        register, trust_locks, heartbeat, {+add_feeds, +}drain
    whoever has a login may call what writes
        [-REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA feedq_1 FROM PUBLIC;-]
    what is called like a function of the server is found on the caller's search path
        SECURITY DEFINER[- SET search_path = pg_catalog, pg_temp-]', called
tests/contract/test_jobs_limits.py
    nobody looks for schedules whose turn nobody has
        IF [-NOT FOUND OR -]has.state = 'waiting' AND has.due_at > at
    the newest tick has the turn
        ORDER BY (r.kind = 'backfill'), r.tick_at{+ DESC+}, r.id LIMIT 1;
    a retry keeps the turn from what comes first
        CONTINUE WHEN [-has.state = 'running' OR has.due_at <= at-]{+true+} OR NOT EXISTS (
tests/contract/test_jobs_limits.py
    a worker takes its share anew each time it asks
        [-- (slots - free)-], left_over))::int
tests/contract/test_jobs_firing.py
tests/contract/test_jobs_races.py
    a watermark goes back
        [-given.next_tick_at >= s.next_tick_at-]{+true+})
tests/contract/test_jobs_firing.py
    a backfill silences the ticks that fall due meanwhile
        FILTER (WHERE [-kind <> 'backfill' AND -]state = 'running')::int
    a tick waits for all of a backfill
        ORDER BY [-(r.kind = 'backfill'), -]r.tick_at, r.id LIMIT 1;
tests/contract/test_jobs_races.py
    two that fire share a schedule
        ORDER BY next_fire_at LIMIT most[- FOR NO KEY UPDATE SKIP LOCKED-]
tests/contract/test_jobs_claiming.py
    a run keeps its fence from attempt to attempt
        reason = NULL[-, fence = nextval('feedq.run_fence')-]
    a run before its time
        [-AND r.due_at <= at AND (r.start_by IS NULL OR r.start_by > at)
                    -]ORDER BY r.rank_at
tests/contract/test_jobs_finishing.py
    a run is taken over whatever its fence
        WHERE r.[-fence = t.fence AND r.-]worker_id = was
    at most once is done again
        [-r.job ->> 'semantics' IN ('at_least_once', 'transactional')-]{+true+}
    an attempt is finished whatever its fence
        IF r.state = 'running' AND r.[-fence = told.fence AND r.-]worker_id = session THEN
    a worker that may live owes its runs at once
        AND [-w.suspected_at > feedq.now() - interval '1 second'-]{+false+}
tests/live/test_runner_backfills.py
    a batch that goes beyond the end of a backfill lands whole
        kept = [-self.options.cut(batch, self.ends_at, cursor)-]{+batch+}
    who takes over a backfill whose end has landed asks its source again
        self._read_whole is batch_queue [-or-]{+and+} self._backfill_end.is_reached(
"""
"""The tests that must notice, below them what is broken, and below that the change."""


def listed() -> Iterator[Mutant]:
    for tests, mutants in re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", BROKEN, re.MULTILINE):
        for what, change in re.findall(r"^ {4}(\S.*)\n((?: {8}.*\n)+)", mutants, re.MULTILINE):
            lines = (line[8:] for line in change.splitlines())
            yield Mutant(what, *both_sides("\n".join(lines)), tuple(tests.split()))


MUTANTS = list(listed())
