"""The errors of feedq: one class per thing that a caller does differently.

::

    FeedqError
    ├── InvalidInput          the request is wrong; say which option, and what would be right
    │   ├── NotFound          no feed, schedule, run, worker or file of that name
    │   └── Unreadable        stored by a release that knows more; upgrade, or declare it anew
    ├── Unauthenticated       nobody knows who asks; send a token
    ├── Forbidden             whoever asks may not do this
    ├── Conflict              the name is taken, or somebody else changed it first
    │   └── Outdated          what was to be changed is no longer what was looked at; look again
    ├── CatalogUnavailable    a catalog cannot be read; nothing was changed, the next sync tries again
    ├── SyncRefused           a catalog would have unusually many feeds removed; a person has to say so
    ├── Unavailable           a server is away; try again later
    │   └── SchemaBehind      the database and this release do not fit
    ├── LeaseLost             this worker no longer owns the feed; stop that one runner
    ├── RunTakenAway          this worker no longer owns the run; nothing of its transaction was kept
    ├── JobSessionLost        the transaction of a run was cut off; nothing of it was kept, it is tried again
    ├── RunCancelled          raised within a job that was told to stop; let it through
    ├── SourceUnavailable     the source refused, reset, or fell silent; reconnect with backoff
    │   ├── SourceSilent      connected, and nothing came for the idle timeout: the feed is stalled
    │   └── SourceBusy        the source said when to ask again; not before
    ├── EndReached            a backfill has read all it was begun for; release the feed for good
    ├── SinkUnavailable       the sink database is away; keep the batches and try again
    │   ├── CommitUnknown     the answer to a commit was lost: the same write again finds out
    │   └── CheckpointLost    the checkpoint is not as it was left: drop the batches, and fence the feed anew
    └── FeedMisconfigured     only an edit of the feed can help; do not retry

A message says what happened, to which one, and what to do about it. Whatever may hold a secret
(URLs, options) is masked before it gets into a message.
"""

from __future__ import annotations


class FeedqError(Exception):
    """Root of everything feedq raises on purpose."""


class InvalidInput(FeedqError):
    """A request, option or file is invalid."""


class NotFound(InvalidInput):
    """The named thing does not exist."""


class Unreadable(InvalidInput):
    """A stored declaration contains something that this release does not know."""


class Unauthenticated(FeedqError):
    """The request carries no credentials, or invalid ones."""


class Forbidden(FeedqError):
    """The caller's role does not allow this, or not for that tenant."""


class Conflict(FeedqError):
    """The name is taken, or the thing changed in the meantime."""


class Outdated(Conflict):
    """Somebody else changed the thing since it was looked at: nothing was changed."""


class CatalogUnavailable(FeedqError):
    """A catalog cannot be read, so that nothing is known of its feeds and nothing was changed."""


class SyncRefused(FeedqError):
    """A sync would remove so many feeds that a person has to confirm it."""


class Unavailable(FeedqError):
    """A server that feedq needs does not answer."""


class PermissionMissing(Unavailable):
    """The role that feedq connects as may not do this in the control database."""


class SchemaBehind(Unavailable):
    """The control database lacks a migration of this release, or has lost its functions to a newer one."""


class LeaseLost(FeedqError):
    """The feed has another owner, or none: this worker must stop writing it."""

    def __init__(self, message: str, *, sink_epoch: int | None = None) -> None:
        """``sink_epoch``: the epoch that the sink knows of, if it was the sink that said so."""
        super().__init__(message)
        self.sink_epoch = sink_epoch


class RunTakenAway(FeedqError):
    """The run has a newer fence, or has ended: what this worker wrote for it was rolled back."""


class JobSessionLost(FeedqError):
    """The database session of a transactional run was cut off: nothing that its job wrote was kept."""


class RunCancelled(FeedqError):
    """The run was cancelled, timed out or taken away: its job should stop."""


class SourceUnavailable(FeedqError):
    """The feed's source cannot be reached or broke off; worth another try."""


class SourceSilent(SourceUnavailable):
    """The source is connected but sent nothing for the idle timeout."""


class SourceBusy(SourceUnavailable):
    """The source said when to ask again: ``retry_in_s`` seconds from now."""

    def __init__(self, message: str, *, retry_in_s: float) -> None:
        super().__init__(message)
        self.retry_in_s = retry_in_s


class EndReached(FeedqError):
    """Nothing beyond this point of the source is wanted: not a failure, but the end of a backfill."""


class SinkUnavailable(FeedqError):
    """The sink database cannot be reached; worth another try with the same batches."""


class CommitUnknown(SinkUnavailable):
    """The connection broke between a commit and its answer: repeating the write finds out what happened."""


class CheckpointLost(SinkUnavailable):
    """The feed's checkpoint is not the one that was left there: fence anew, and ask the source again."""


class FeedMisconfigured(FeedqError):
    """The feed cannot run as it is declared; it waits for an edit."""


def error_of(kind: str, detail: str) -> FeedqError:
    """The error of the class of this name, as servers tell of it; the root of all where there is none."""
    found = globals().get(kind)
    if isinstance(found, type) and issubclass(found, FeedqError) and found is not SourceBusy:
        return found(detail)
    return FeedqError(detail)
