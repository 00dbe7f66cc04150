"""Work shared by several processes, which end with the one that started them, and keep what they have."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

from regard._problem import Problem
from regard._stop import SIGNALS, Stop, Stopped, current_stop, exit_now

A = TypeVar("A")
T = TypeVar("T")
_SAME = 0.2  # seconds within which one signal reaches all processes of a group
_LOOK = 0.5  # seconds between two looks at signals and progress


def run_parallel(
    function: Callable[[A], T],
    items: Sequence[A],
    workers: int,
    *,
    look: Callable[[], None] | None = None,
    kept: str = "",
) -> list[T]:
    """The results of a function for all items, computed by several processes; the first error is raised here.

    Ctrl-c, SIGTERM and errors end the workers after their current step (`regard._stop.Stop`), and so does the end of
    this process, even by SIGKILL: all read from one pipe that only this process can write to, and see when it closes.

    `function`: a function at the top of a module; it and the items are sent to spawned processes.
    `items`: what it is called with.
    `workers`: processes; not more than items.
    `look`: called about twice a second; default None.
    `kept`: what is kept if a signal ends the work, in words; default nothing is said.
    """
    context = multiprocessing.get_context("spawn")
    held, alive = context.Pipe(duplex=False)
    slots: dict[Connection, tuple[BaseProcess, int]] = {}  # the process at the other end, and the item it works on
    results: dict[int, T] = {}
    waiting = iter(range(len(items)))

    def give(pipe: Connection, process: BaseProcess) -> None:
        """Send the next item to a worker, or let it end."""
        number = next(waiting, None)
        if number is None:
            del slots[pipe]
            pipe.close()
            process.join()
            return
        slots[pipe] = (process, number)
        with contextlib.suppress(BrokenPipeError):  # it has died: its end of the pipe says so below
            pipe.send(items[number])

    with Stop() as stop:
        stop.kept = kept
        try:
            for _ in range(min(workers, len(items))):
                pipe, theirs = context.Pipe()
                process: BaseProcess = context.Process(target=_work, args=(held, theirs, function))
                with _signals_wait():
                    process.start()
                theirs.close()
                slots[pipe] = (process, -1)
                give(pipe, process)
            while slots and not stop.requested:
                for ready in wait(list(slots), timeout=_LOOK):
                    pipe = cast(Connection, ready)
                    process, number = slots[pipe]
                    try:
                        results[number] = _received(pipe, process)
                    except Problem:
                        time.sleep(_SAME)  # a signal to the whole group may have reached it first
                        if stop.requested:
                            break
                        raise
                    give(pipe, process)
                if look is not None:
                    look()
        finally:
            alive.close()
            held.close()
            for pipe, (process, _number) in slots.items():
                pipe.close()
                process.join()
    return [results[number] for number in range(len(items))]


def _received(pipe: Connection, process: BaseProcess) -> Any:
    """The result that a worker sends; its error is raised, and so is its end without a word."""
    try:
        succeeded, result = pipe.recv()
    except (EOFError, ConnectionError):
        process.join()
        raise Problem(end_in_words("a process that worked", process.exitcode or 0)) from None
    if not succeeded:
        raise result
    return result


def end_in_words(process: str, status: int) -> str:
    """What to say of a helping process that ended without a result.

    `process`: what it is called.
    `status`: its exit status, as `multiprocessing` gives it: negative for a signal.

    >>> end_in_words("a process that worked", -9)
    'a process that worked was ended by SIGKILL, perhaps for lack of memory. What was finished is kept: rerun the ...'
    """
    number = -status if status < 0 else status - 128
    known = number in set(signal.Signals)
    how = f"was ended by {signal.Signals(number).name}" if known else f"ended with status {status}"
    return (
        f"{process} {how}, perhaps for lack of memory. What was finished is kept: rerun the command to resume, with "
        "fewer --workers if memory is short."
    )


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Hold signals back, here until the end, and in a process that starts within until it is ready for them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it lets signals through when it starts: so it is started before
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(held: Connection, pipe: Connection, function: Callable[[Any], Any]) -> None:
    """The life of a worker: receive an item, send the result, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c reaches the whole group; the first process says what to do
    signal.signal(signal.SIGTERM, exit_now)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with_parent, args=(held,), daemon=True).start()
    while True:
        try:
            item = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            reply = (True, function(item))
        except Stopped as stopped:
            os._exit(stopped.status)
        except BaseException as error:
            error.add_note(traceback.format_exc())
            reply = (False, error)
        try:
            pipe.send(reply)
        except OSError:  # nobody is there to take it
            os._exit(1)
        except Exception as error:  # a result or an error that cannot be sent
            pipe.send((False, RuntimeError(f"{type(reply[1]).__name__}: {reply[1]} ({error})")))


def _end_with_parent(held: Connection) -> None:
    """Wait for the end of the process that started this one, or for its wish; then stop after the current step."""
    wait([held])
    while True:  # once may not be enough: a step may have ended the moment before, and other work begun
        if stop := current_stop():
            stop.request(signal.SIGTERM)
        elif hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        else:
            signal.raise_signal(signal.SIGTERM)
        time.sleep(_LOOK)
