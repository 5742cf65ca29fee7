"""Becomes a program that ends when its parent does, however the parent ends.

Run as ``python leash.py PARENT PROGRAM [ARGUMENT …]``. The setting has to be made in the child itself; doing so
between fork and exec, in a process with threads, could deadlock. It imports nothing of feedq: it must start fast.

The kernel ties the setting to the *thread* that started the child, which has to live as long as the child may.
Where there is no such setting (macOS), a child ends at its next write, for nobody reads it any more.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_RUN = 127
"""As shells have it."""


def main(parent: int, argv: list[str]) -> None:
    """Never returns."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(CANNOT_RUN)
    # What is ignored stays so: SIGPIPE by Python, by which a child learns of our end, and SIGHUP by nohup, say.
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execv(argv[0], argv)  # noqa: S606 - no shell is what is wanted; the caller has checked the program
    except OSError as error:
        sys.stderr.write(f"cannot be run: {error.strerror}\n")
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
