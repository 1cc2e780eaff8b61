"""System calls that Python does not offer. Linux only; also loaded inside the sandbox."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_PDEATHSIG, _SUBREAPER, _NO_NEW_PRIVS, _SECCOMP = 1, 36, 38, 22
_KEEPCAPS, _AMBIENT, _AMBIENT_RAISE, _DAC_READ_SEARCH = 8, 47, 2, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _CLONE3 = 442, 435
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_DENIED = {  # socket, ptrace, (u)mount, pivot_root, unshare, setns, keys, bpf, perf, modules, kexec, process_vm_*
    "x86_64": (41, 101, 165, 166, 155, 272, 308, 248, 249, 250, 321, 298, 323, 175, 313, 246, 304, 310, 311),
    "aarch64": (198, 117, 40, 39, 41, 97, 268, 217, 218, 219, 280, 241, 282, 105, 273, 104, 265, 270, 271),
}
_HOARDS = {  # calls for memory charged to no process: memfd, System V segments, messages and semaphores, POSIX messages
    "x86_64": (319, 29, 68, 64, 240),
    "aarch64": (279, 194, 186, 190, 180),
}
_TIMERS = {"x86_64": 222, "aarch64": 107}  # timer_create: a timer could send SIGCONT, which wakes a stopped process
_IO_URING, _MEMFD_SECRET = (425, 426, 427), 447
_CLONE, _FCNTL, _MMAP = {"x86_64": 56, "aarch64": 220}, {"x86_64": 72, "aarch64": 25}, {"x86_64": 9, "aarch64": 222}
_F_SETSIG = 10
_SHARED_ANONYMOUS = 0x21

_libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call for which libc has no function."""
    return int(_libc.syscall(number, *arguments))


def unshare(flags: int) -> None:
    checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    text = [part.encode() or None for part in (source, target, kind, options)]
    checked(_libc.mount(text[0], text[1], text[2], ctypes.c_ulong(flags), text[3]), f"mount {target}")


def make_read_only(target: str) -> None:
    """Make a mount and all mounts below it read-only, without set-user-id programs and devices (Linux 5.12)."""
    attributes = struct.pack("QQQQ", MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)
    result = call(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes))
    checked(result, f"mount_setattr {target}")


def pivot_root(new: str, old: str) -> None:
    checked(call(_PIVOT_ROOT[platform.machine()], new.encode(), old.encode()), "pivot_root")


def detach(target: str) -> None:
    checked(_libc.umount2(target.encode(), 2), f"umount {target}")


def die_with_parent(number: int = 9) -> None:
    checked(_libc.prctl(_PDEATHSIG, number, 0, 0, 0), "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    checked(_libc.prctl(_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def keep_capabilities() -> None:
    checked(_libc.prctl(_KEEPCAPS, 1, 0, 0, 0), "PR_SET_KEEPCAPS")


def renounce_privileges(*, but_to_read: bool = False) -> None:
    """Drop all capabilities for good; with ``but_to_read``, keep the capability to read any file and folder."""
    checked(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    header = struct.pack("Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    kept = but_to_read << _DAC_READ_SEARCH
    checked(_libc.capset(header, struct.pack("6I", kept, kept, kept, 0, 0, 0)), "capset")
    if but_to_read:  # ambient: programs that the process starts keep the capability
        checked(_libc.prctl(_AMBIENT, _AMBIENT_RAISE, _DAC_READ_SEARCH, 0, 0), "PR_CAP_AMBIENT_RAISE")


def filter_calls() -> bool:
    """Refuse, for good, system calls for sockets, mounts, tracing, namespaces, keys and the like.

    Also refuses calls that allocate memory charged to no process, and calls by which the kernel sends signals later
    (timers, for example), because these would wake a stopped process.

    Returns:
        Whether the filter is active: the machine's architecture is known and the kernel accepted the filter.
    """
    # A classic BPF program over struct seccomp_data: call number at offset 0, architecture at 4, arguments from 16 on.
    # A step is (opcode, instructions to skip if true, if false, operand). Opcodes: 0x20 load, 0x15 jump if equal, 0x35
    # jump if greater or equal, 0x54 and, 0x06 return.
    machine = platform.machine()
    if machine not in _DENIED:
        return False
    refused, missing, allowed = 0x50000 | 1, 0x50000 | 38, 0x7FFF0000  # EPERM, ENOSYS, allow
    denied = (*_DENIED[machine], *_HOARDS[machine], _TIMERS[machine], *_IO_URING, _MEMFD_SECRET)
    by_argument = (  # call, index of the argument, mask, refused value
        (_CLONE[machine], 0, CLONE_NEWUSER, CLONE_NEWUSER),
        (_FCNTL[machine], 1, 0xFFFFFFFF, _F_SETSIG),
        (_MMAP[machine], 3, _SHARED_ANONYMOUS, _SHARED_ANONYMOUS),
    )
    program = [
        (0x20, 0, 0, 4),  # load the architecture
        (0x15, 1, 0, _AUDIT_ARCH[machine]),
        (0x06, 0, 0, 0x80000000),  # kill on another architecture
        (0x20, 0, 0, 0),  # load the call's number
        (0x35, 0, 1, 0x40000000),  # refuse the x32 interface, which uses other call numbers
        (0x06, 0, 0, refused),
        (0x15, 0, 1, _CLONE3),  # a filter cannot read clone3's flags; if clone3 is missing, libc uses clone
        (0x06, 0, 0, missing),
    ]
    for number in denied:
        program += [(0x15, 0, 1, number), (0x06, 0, 0, refused)]
    for number, argument, mask, wrong in by_argument:
        program += [
            (0x15, 0, 5, number),
            (0x20, 0, 0, 16 + 8 * argument),  # load the lower half of the argument
            (0x54, 0, 0, mask),
            (0x15, 0, 1, wrong),
            (0x06, 0, 0, refused),
            (0x06, 0, 0, allowed),
        ]
    program += [(0x06, 0, 0, allowed)]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code)
    prog = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    return _libc.prctl(_SECCOMP, 2, prog, 0, 0) == 0  # type: ignore[no-any-return]
