"""What the task's process does, once it is shut in: jobs, in the order in which they come.

It stays from round to round, so that libraries are loaded and records read once. What the
task prints goes to the site's child.log, and so does the whole text of an error; its parent
gets the error's name and a message without data.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from multiprocessing.connection import Connection

from consortium.errors import ConsortiumError, InternalError
from consortium.site import jobs as j
from consortium.site.bench import Bench, open_bench
from consortium.site.failures import failure_of


def serve(pipe: Connection) -> None:
    """Do jobs until the process is ended."""
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, waiting), daemon=True).start()
    bench: Bench | None = None
    while True:
        job = j.read_job(waiting.get())
        try:
            if isinstance(job, j.Open):
                bench = open_bench(job)
                answer: j.Answer = j.Done()
            else:
                assert bench is not None, "the first job opens the task"
                answer = _done(bench, job)
        except BaseException as error:  # whatever it is, the parent waits for an answer
            answer = _failed(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pipe.send_bytes(j.written(answer))


def _listen(pipe: Connection, waiting: queue.SimpleQueue[bytes]) -> None:
    """Hear jobs while one is being done, and that the parent has gone."""
    while True:
        try:
            waiting.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # what is under way is of no use to anybody


def _done(bench: Bench, job: j.Job) -> j.Answer:
    match job:
        case j.Check():
            return bench.check(job)
        case j.Train():
            return bench.train(job)
        case j.Evaluate():
            return bench.evaluate(job)
        case j.Predict():
            return bench.predict(job)
        case j.Export():
            return bench.export(job)
        case j.Open():
            raise InternalError("a process runs one task")


def _failed(error: BaseException) -> j.Failed:
    """The error for the parent; its whole text, which may show records, for the log here."""
    traceback.print_exception(error)
    failure = failure_of(error)
    if not isinstance(error, ConsortiumError):
        error = InternalError(f"unexpected {type(error).__name__}")
    return j.Failed(
        error=type(error).__name__,
        message=error.message,
        hint=error.hint,
        failure=failure.name,
    )
