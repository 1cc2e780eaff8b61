"""The process between the caller and the code: starts workers, keeps the limits, kills what is left.

It is started as a fresh interpreter without the caller's environment and
imports nothing but the standard library. Invariant: when it answers a run that
keeps no session, and when it ends, nothing that the code started is alive.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import tempfile
import time
from typing import Any

from turntree.envs.sandbox import frames, kernel, worker
from turntree.envs.sandbox.processes import descendants, kill_descendants, private_bytes

_WATCH_SECONDS = 0.05
_CHUNK = 1 << 18


class Supervisor:
    """Runs code for one caller, one piece after another."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Keep what the caller wants.

        Args:
            config: ``limits``, ``isolation``, ``session``, ``paths`` to keep readable, ``packages`` to import from.
        """
        self.config = config
        self.limits = config["limits"]
        self.config["folder"] = ""
        self.namespaces = config["isolation"] != "process"
        self.worker: worker.Worker | None = None
        self.network = True

    def begin(self) -> dict[str, Any]:
        """Start the first worker: ``isolation`` and ``network`` as they are in force, or ``failed``."""
        reason = self._start()
        if reason and self.config["isolation"] == "auto":
            self.namespaces = False
            reason = self._start()
        if reason:
            return {"failed": reason}
        return {"isolation": "namespaces" if self.namespaces else "process", "network": self.network}

    def run(self, code: str) -> dict[str, Any]:
        """Run one piece of code and say what came of it."""
        if self.worker is None and (reason := self._start()):
            return {"failed": reason}
        assert self.worker is not None
        result = _Run(self.worker, self.limits).result(code)
        if not (self.config["session"] and result["status"] in ("ok", "error") and not result.pop("gone")):
            result["clean"] = self.stop()
        return result

    def stop(self) -> bool:
        """Kill the worker and all that it started; whether all are gone."""
        clean = kill_descendants()
        if self.worker is not None:
            self.worker.close()
            self.worker = None
        if self.config["folder"]:
            shutil.rmtree(self.config["folder"], ignore_errors=True)
            self.config["folder"] = ""
        return clean

    def _start(self) -> str:
        """Start a worker; why it could not be, or an empty text."""
        if not self.namespaces:
            self.config["folder"] = tempfile.mkdtemp(prefix="turntree-sandbox-")
        self.worker = worker.start(self.config, namespaces=self.namespaces)
        try:
            said = frames.read(self.worker.results)
        except frames.Closed:
            said = {"failed": "the worker died before it was confined"}
        if "failed" in said:
            self.stop()
            return str(said["failed"])
        self.network = said["network"]
        return ""


class _Run:
    """One piece of code at work."""

    def __init__(self, at_work: worker.Worker, limits: dict[str, Any]) -> None:
        self.worker = at_work
        self.limits = limits
        self.kept = {at_work.stdout: bytearray(), at_work.stderr: bytearray()}
        self.dropped = 0
        self.said: dict[str, Any] | None = None

    def result(self, code: str) -> dict[str, Any]:
        reason = self._wait(code)
        if reason:
            kill_descendants()
        self._drain()
        said = self.said or {}
        status = reason or said.get("status", "")
        error = str(said.get("error", ""))
        gone = self.said is None
        if not status:
            status, error = self._exit_status()
        elif reason:
            error = self._explain(reason)
        if status not in ("ok", "error", "memory", "timeout", "processes", "killed"):
            status, error = "killed", "the code wrote to the sandbox's own channel"
        out, err = (bytes(self.kept[d]).decode("utf-8", "replace") for d in (self.worker.stdout, self.worker.stderr))
        limit = self.limits["output_bytes"]
        return {
            "status": status,
            "stdout": out,
            "stderr": err,
            "error": error[-limit:],
            "dropped": self.dropped,
            "gone": gone,
        }

    def _wait(self, code: str) -> str:
        """Wait for the end of the code; the reason why it must be killed, or an empty text."""
        end = time.monotonic() + self.limits["seconds"]
        watched = 0.0
        with selectors.DefaultSelector() as selector:
            for descriptor in (0, self.worker.results, *self.kept):
                selector.register(descriptor, selectors.EVENT_READ)
            try:
                frames.write(self.worker.requests, {"code": code})
            except OSError:
                return ""
            while True:
                now = time.monotonic()
                if now >= end:
                    return "timeout"
                if now >= watched + _WATCH_SECONDS:
                    watched = now
                    if reason := self._exceeded():
                        return reason
                for key, _ in selector.select(min(end - now, _WATCH_SECONDS)):
                    if key.fd == 0:  # the caller is gone: it says nothing while code runs
                        raise frames.Closed
                    if key.fd != self.worker.results:
                        if not self._take(key.fd):
                            selector.unregister(key.fd)
                        continue
                    try:
                        self.said = frames.read(self.worker.results)
                    except frames.Closed:
                        self.said = None
                    return ""

    def _exceeded(self) -> str:
        below = descendants(os.getpid())
        if len(below) > self.limits["processes"] + 3:  # the chain of worker.py and the worker itself
            return "processes"
        if len(below) and sum(map(private_bytes, below)) > self.limits["memory_bytes"]:
            return "memory"
        return ""

    def _take(self, descriptor: int) -> bool:
        data = os.read(descriptor, _CHUNK)
        kept = self.kept[descriptor]
        room = self.limits["output_bytes"] - len(kept)
        kept += data[: max(0, room)]
        self.dropped += len(data) - max(0, min(room, len(data)))
        return bool(data)

    def _drain(self) -> None:
        """Take what was written before the end; a process that goes on writing is not waited for."""
        with selectors.DefaultSelector() as selector:
            for descriptor in self.kept:
                selector.register(descriptor, selectors.EVENT_READ)
            end = time.monotonic() + 1
            while selector.get_map() and time.monotonic() < end and (ready := selector.select(0)):
                for key, _ in ready:
                    if not self._take(key.fd):
                        selector.unregister(key.fd)

    def _exit_status(self) -> tuple[str, str]:
        """How a worker ended that has said nothing."""
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pid, status = os.waitpid(self.worker.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.002)
        else:
            return "killed", "the code closed the sandbox's own channel"
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return "ok", ""
        number = -code if code < 0 else code - 128
        if number > 0:
            name = signal.Signals(number).name if number in list(signal.Signals) else str(number)
            return "killed", f"the process was ended by {name}"
        return "error", f"the process ended with exit code {code}"

    def _explain(self, reason: str) -> str:
        return {
            "timeout": f"stopped after {self.limits['seconds']:g} s",
            "memory": f"stopped: more than {self.limits['memory_bytes'] >> 20} MiB of memory in use",
            "processes": f"stopped: more than {self.limits['processes']} processes",
        }[reason]


def main() -> None:
    """Serve the caller at standard input and output until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.adopt_orphans()
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
