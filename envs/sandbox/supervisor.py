"""The process between the caller and the code: it starts workers, enforces limits and kills what remains.

It runs in a fresh interpreter without the caller's environment and imports only the standard library. Invariant:
when it answers a run without a session, and when it ends, nothing that the code started is alive.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from turntree.envs.sandbox import frames, kernel, processes, worker
from turntree.envs.sandbox.processes import descendants, kill_descendants

_WATCH_SECONDS = 0.05  #: seconds between two checks of memory, processes and files
_CHUNK = 1 << 18  #: bytes to read at once
_FILES = 10_000  #: maximum number of files of a run without namespaces; with namespaces, the file tree has a limit
_END_SECONDS = 2.0  #: seconds within which a worker that has nothing more to report must end
_STIRRED = 5  #: clock ticks that stopped processes may seem to use, because the kernel charges their last tick late
_CHANNEL = "channel"  #: reason to kill code that wrote to the worker's pipes or closed them


class Supervisor:
    """Runs code for one caller, one piece after another."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.limits = config["limits"]
        self.config["folder"] = ""
        self.namespaces = config["isolation"] != "process"
        self.worker: worker.Worker | None = None
        self.network = self.files = True
        self.used = 0
        """CPU time in clock ticks that the session's processes had used when they were stopped."""

    def begin(self) -> dict[str, Any]:
        """Start the first worker (the process that runs the code); report the isolation in effect.

        If no worker could be started, the report has only ``failed``, the reason. Otherwise its ``refused`` is the
        reason why there are no namespaces.
        """
        refused = reason = self._start()
        if reason and self.config["isolation"] == "auto":
            self.namespaces = False
            reason = self._start()
        if reason:
            return {"failed": reason}
        return {
            "isolation": "namespaces" if self.namespaces else "process",
            "network": self.network,
            "files": self.files,
            "refused": refused,
        }

    def run(self, code: str) -> dict[str, Any]:
        if self.worker is None and (reason := self._start()):
            return {"failed": reason}
        assert self.worker is not None
        run = _Run(self.worker, self.config)
        # If CPU time was used since the last run, a process was woken between the runs.
        if self.used:
            if processes.ticks(descendants(os.getpid())) > self.used + _STIRRED:
                run.killed_for = "restless"
            processes.thaw_descendants()
        result = run.result(code)
        self.used = 0
        if run.waits_for_code and result["status"] in ("ok", "error"):
            self.used = 1 + processes.ticks(descendants(os.getpid()))
        else:
            result["clean"] = self.stop()
        return result

    def stop(self) -> bool:
        """Kill the worker and all processes that it started; return whether all are gone."""
        clean = kill_descendants()
        if self.worker is not None:
            self.worker.close()
            self.worker = None
        if self.config["folder"]:
            shutil.rmtree(self.config["folder"], ignore_errors=True)
            self.config["folder"] = ""
        return clean

    def _start(self) -> str:
        # Returns the reason why the worker could not be started; empty if it runs.
        if not self.namespaces:
            self.config["folder"] = tempfile.mkdtemp(prefix="turntree-sandbox-")
        self.worker = worker.start(self.config, namespaces=self.namespaces)
        try:
            report = frames.read(self.worker.results)
        except frames.Closed:
            report = {"failed": "the worker died before it was confined"}
        if "failed" in report:
            self.stop()
            return str(report["failed"])
        self.network, self.files = report["network"], report["files"]
        self.worker = self.worker.seen()
        return ""


class _Run:
    # The code runs in the worker's process and can forge the worker's report, so a report only explains a result. A run
    # succeeds if the worker exits with 0, or, in a session, if the worker reports "ok" and stays alive.

    def __init__(self, running: worker.Worker, config: dict[str, Any]) -> None:
        self.worker = running
        self.limits = config["limits"]
        self.session = config["session"]
        self.folder = config["folder"]
        self.kept = {running.stdout: bytearray(), running.stderr: bytearray()}
        self.dropped = 0
        self.killed_for = ""  # reason why the code was killed, a key in _explain; empty if it was not
        self.report: dict[str, Any] | None = None
        self.exit_code: int | None = None
        self._collector = frames.Collector(_max_report_bytes(self.limits["output_bytes"]))
        self._end = time.monotonic() + self.limits["seconds"]

    @property
    def waits_for_code(self) -> bool:
        return not self.killed_for and self.exit_code is None

    def result(self, code: str) -> dict[str, Any]:
        self.killed_for = self.killed_for or self._wait(code)
        # Stop all processes before the output is read: nothing may be written between this result and the next run.
        if self.waits_for_code and not processes.freeze_descendants():
            self.killed_for = "restless"
        if self.waits_for_code and not processes.is_stopped(self.worker.last):
            self.killed_for = self._await_exit()
        if self.killed_for:
            kill_descendants()
        self._drain()
        status, error = self._verdict()
        out, err = (bytes(self.kept[d]).decode("utf-8", "replace") for d in (self.worker.stdout, self.worker.stderr))
        return {"status": status, "stdout": out, "stderr": err, "error": error, "dropped": self.dropped}

    def _wait(self, code: str) -> str:
        # Runs until the code ends. Returns the reason why the code must be killed; empty if it ended.
        left = memoryview(frames.pack({"code": code}))
        watched = 0.0
        with selectors.DefaultSelector() as selector, _end_of(self.worker.pid) as ended:
            for descriptor in (0, self.worker.results, *self.kept, *ended):
                selector.register(descriptor, selectors.EVENT_READ)
            selector.register(self.worker.requests, selectors.EVENT_WRITE)
            while not self._has_exited():
                now = time.monotonic()
                if now >= self._end:
                    return _CHANNEL if self.report is not None and self.session else "timeout"
                if now >= watched + _WATCH_SECONDS:
                    watched = now
                    if reason := self._exceeded():
                        return reason
                for key, _ in selector.select(min(self._end - now, _WATCH_SECONDS)):
                    if key.fd == 0:  # the caller sends nothing while code runs, so it has closed the descriptor
                        raise frames.Closed
                    if key.fd == self.worker.requests:
                        left = _write_some(key.fd, left)
                        if not left:
                            selector.unregister(key.fd)
                    elif key.fd == self.worker.results:
                        if self._read_report():
                            selector.unregister(key.fd)
                    elif key.fd in self.kept and not self._read_output(key.fd):
                        selector.unregister(key.fd)
                if self.report and self.session:
                    return ""
        if self.report is None:
            with contextlib.suppress(BlockingIOError):
                self._read_report()
        return ""

    def _await_exit(self) -> str:
        # The worker has reported a result, but is not stopped like a waiting process: it may be about to exit. Wait for
        # the exit, or return the reason to kill it.
        processes.thaw_descendants()
        end = time.monotonic() + _END_SECONDS
        while not self._has_exited():
            if time.monotonic() >= end:
                return _CHANNEL
            time.sleep(0.002)
        return ""

    def _read_report(self) -> bool:
        # Returns whether the worker's report is complete.
        patience = _END_SECONDS  # in a session, for a worker that closed its reports because it is about to end
        try:
            data = os.read(self.worker.results, _CHUNK)
            self.report = self._collector.take(data) if data else {}
        except frames.Closed:
            self.report, patience = {}, 0.0
        if self.report == {} and self.session:
            self._end = min(self._end, time.monotonic() + patience)
        return self.report is not None

    def _has_exited(self) -> bool:
        if self.exit_code is None:
            pid, status = os.waitpid(self.worker.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is not None

    def _exceeded(self) -> str:
        below = descendants(os.getpid())
        if len(below) > self.limits["processes"] + 3:  # up to three belong to the sandbox, see worker.py
            return "processes"
        if processes.holds_more(below, self.limits["memory_bytes"]):
            return "memory"
        if self.folder and processes.files_hold_more(self.folder, below, self.limits["disk_bytes"], count=_FILES):
            return "files"
        return ""

    def _read_output(self, descriptor: int) -> bool:
        data = os.read(descriptor, _CHUNK)
        kept = self.kept[descriptor]
        room = max(0, self.limits["output_bytes"] - len(kept))
        kept += data[:room]
        self.dropped += len(data) - min(room, len(data))
        return bool(data)

    def _drain(self) -> None:
        # Reads output written before the end, but does not wait for a process that keeps writing.
        with selectors.DefaultSelector() as selector:
            for descriptor in self.kept:
                selector.register(descriptor, selectors.EVENT_READ)
            end = time.monotonic() + 1
            while selector.get_map() and time.monotonic() < end and (ready := selector.select(0)):
                for key, _ in ready:
                    if not self._read_output(key.fd):
                        selector.unregister(key.fd)

    def _verdict(self) -> tuple[str, str]:
        report = self.report or {}
        outcome = str(report.get("status"))
        if self.killed_for:
            status, reason = self._explain(self.killed_for)
            return status, "\n".join(filter(None, (str(report.get("error", "")), reason)))
        if self.exit_code is None and outcome == "ok":
            return "ok", ""
        if self.exit_code in (None, 0, 1) and outcome in ("error", "memory"):
            return outcome, str(report.get("error", ""))[-self.limits["output_bytes"] :]
        if self.exit_code is None:
            return self._explain(_CHANNEL)
        if self.exit_code == 0:
            return "ok", ""
        # If a signal n ended the worker, the process that waits for the worker exits with 128 + n.
        number = -self.exit_code if self.exit_code < 0 else self.exit_code - 128
        if number > 0:
            name = signal.Signals(number).name if number in list(signal.Signals) else str(number)
            return "killed", f"the process was ended by {name}"
        return "error", f"the process ended with exit code {self.exit_code}"

    def _explain(self, reason: str) -> tuple[str, str]:
        limits = self.limits
        return {
            "timeout": ("timeout", f"stopped after {limits['seconds']:g} s"),
            "memory": ("memory", f"stopped: more than {limits['memory_bytes'] >> 20} MiB of memory in use"),
            "processes": ("processes", f"stopped: more than {limits['processes']} processes"),
            "files": ("killed", f"stopped: more than {limits['disk_bytes'] >> 20} MiB or {_FILES} files"),
            "restless": ("killed", "stopped: the code kept running between two calls"),
            _CHANNEL: ("killed", "the code closed the sandbox's internal channel, or wrote to it"),
        }[reason]


def _max_report_bytes(error_chars: int) -> int:
    # JSON needs at most twelve bytes for a character (a surrogate pair of escapes).
    return 12 * error_chars + 1024


@contextlib.contextmanager
def _end_of(pid: int) -> Iterator[list[int]]:
    # Yields a list with a descriptor that becomes readable when the process ends; an empty list before Linux 5.3.
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        yield []
        return
    try:
        yield [descriptor]
    finally:
        os.close(descriptor)


def _write_some(descriptor: int, data: memoryview) -> memoryview:
    # Writes as much as fits into the pipe and returns the rest; returns nothing if the pipe has no reader any more.
    try:
        return data[os.write(descriptor, data) :]
    except BlockingIOError:
        return data
    except OSError:
        return data[:0]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's Ctrl-C is the caller's to handle
    kernel.adopt_orphans()
    # Standard output carries the frames to the caller. Move it, so that accidental prints go to /dev/null instead.
    channel = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.set_inheritable(channel, False)
    supervisor = Supervisor(frames.read(0))
    try:
        frames.write(channel, supervisor.begin())
        while True:
            frames.write(channel, supervisor.run(frames.read(0)["code"]))
    except (frames.Closed, OSError):
        pass
    finally:
        supervisor.stop()
