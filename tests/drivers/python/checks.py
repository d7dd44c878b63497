"""What the scripts for Python have in common: where to connect, and how to report (see tests/drivers_test.go)."""
import os
import sys
import time
import traceback

RUN_DIR, ROUTE = os.environ["RUN_DIR"], os.environ["ROUTE"]

TEXT = "Käse 'n' \\ ☕"
LARGE = "select repeat('x', 1000) from generate_series(1, 10000)"
LINES = [f"{i}\tline {i}" for i in range(1000)]
SLEEPING = "select count(*) from pg_stat_activity where pid = {} and wait_event = 'PgSleep'"


class Lacks(Exception):
    """The driver has no such thing; the text says why."""


def expect(got, want):
    if got != want:
        raise AssertionError(f"got {str(got)[:200]!r}, want {str(want)[:200]!r}")


def refused(call, error, sign):
    """Call, which must raise the error; the sign, a SQLSTATE or part of the message, must be in it."""
    try:
        call()
    except error as e:
        state = getattr(e, "sqlstate", None) or getattr(e, "pgcode", None) or ""
        if sign not in f"{state} {e}":
            raise AssertionError(f"no {sign} in: {e!r}") from e
        return e
    raise AssertionError(f"no {error.__name__}")


def poll(good):
    """Wait until good() is true."""
    deadline = time.monotonic() + 20
    while not good():
        if time.monotonic() > deadline:
            raise AssertionError("waited 20 s in vain")
        time.sleep(0.01)


def restart():
    """Return when the server has been restarted."""
    print("restart?", flush=True)
    sys.stdin.readline()


def report(version, **checks):
    """Run the checks and print one line for each."""
    print("version:", version)
    for name, check in checks.items():
        try:
            remark = check()
            print(f"{name}: ok, {remark}" if remark else f"{name}: ok", flush=True)
        except Lacks as e:
            print(f"{name}: none, {e}", flush=True)
        except BaseException as e:  # also what a driver raises beside Exception
            print(f"{name}: {type(e).__name__}: {' '.join(str(e).split())}", flush=True)
            traceback.print_exc()
