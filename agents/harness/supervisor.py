"""The parent process of a program; it ends all of the program's processes when the program or its episode ends.

The supervisor is a fresh interpreter that imports little more than the standard library. If the kernel allows, the
program gets its own PID namespace and ``/proc``. All of its processes then end with the namespace. The program also
cannot read other programs' environment variables, which contain API keys. Without a namespace, the supervisor adopts
and kills orphaned processes, but a program could kill the supervisor first.
Not covered: processes that ``cron``, ``systemd`` or Docker start for the program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from turntree.envs.sandbox import kernel, processes

_BOOT = """
import sys, types
for name, path in {packages!r}:
    package = types.ModuleType(name)
    package.__path__ = path
    sys.modules[name] = package
from turntree.agents.harness.supervisor import main
main()
"""
#: prefix of the report if the command could not be run; otherwise the report is the command's wait status
CANNOT = "cannot "


def supervised(command: list[str], report: int) -> list[str]:
    """Return the command line that runs ``command`` under a supervisor; SIGTERM ends all its processes.

    Args:
        report: File descriptor to which the supervisor writes its report.
    """
    sandbox, harness = os.path.dirname(kernel.__file__), os.path.dirname(os.path.abspath(__file__))
    packages: list[tuple[str, list[str]]] = [(name, []) for name in ("turntree", "turntree.envs", "turntree.agents")]
    packages += [("turntree.envs.sandbox", [sandbox]), ("turntree.agents.harness", [harness])]
    return [sys.executable, "-I", "-S", "-c", _BOOT.format(packages=packages), str(report), *command]


def main() -> None:
    report, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(report, False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    kernel.die_with_parent(signal.SIGTERM)
    kernel.adopt_orphans()
    try:
        if not _run_apart(command, report):
            _run(command, report)
    finally:
        # A second SIGTERM must not interrupt the cleanup.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        processes.kill_descendants()


def _run(command: list[str], report: int) -> None:
    program = os.fork()
    if not program:
        # A new process group: signals to this group reach only the program.
        os.setsid()
        # Python ignores these signals, and a child process inherits ignored signals.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(report, f"{CANNOT}{error.strerror}\n".encode())
        os._exit(127)
    os.write(report, str(_wait_for(program)).encode())


def _wait_for(program: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == program:
            return status


def _run_apart(command: list[str], report: int) -> bool:
    # Return False if the kernel does not allow a new PID namespace.
    reader, ready = os.pipe()
    inner = os.fork()
    if not inner:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        kernel.die_with_parent()
        with contextlib.suppress(OSError):
            _enter_namespaces()
            first = os.fork()
            if not first:
                kernel.die_with_parent()
                _mount_own_proc()
                os.write(ready, b"1")
                os.close(ready)
                _run(command, report)
                # The kernel kills everything below the first process of a PID namespace.
                os._exit(0)
            os.close(ready)
            os.waitpid(first, 0)
        os._exit(0)
    os.close(ready)
    allowed = bool(os.read(reader, 1))
    _wait_for(inner)
    return allowed


def _enter_namespaces() -> None:
    # Processes started from here on get their own process ids and their own mounts.
    user, group, flags = os.getuid(), os.getgid(), kernel.CLONE_NEWNS | kernel.CLONE_NEWPID
    # In a user namespace, root would lose access to other users' files.
    if user == 0:
        kernel.unshare(flags)
        return
    kernel.unshare(flags | kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        _write(f"/proc/self/{name}", text)


def _mount_own_proc() -> None:
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    # If the old /proc cannot be unmounted (a locked mount), mount the new /proc over it.
    with contextlib.suppress(OSError):
        kernel.detach("/proc")
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    # Start at a random process id, so that files named by process id do not collide between programs.
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/pid_max") as file:
            pid_max = int(file.read())
        last_pid = pid_max // 2 + int.from_bytes(os.urandom(4), "little") % (pid_max // 3)
        _write("/proc/sys/kernel/ns_last_pid", str(last_pid))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
