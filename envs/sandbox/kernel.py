"""System calls that Python does not offer. Linux only; loaded inside of the sandbox too."""

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
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _CLONE3 = 442, 435
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_DENIED = {  # socket, ptrace, (u)mount, pivot_root, unshare, setns, keys, bpf, perf, modules, kexec, other memory
    "x86_64": (41, 101, 165, 166, 155, 272, 308, 248, 249, 250, 321, 298, 323, 175, 313, 246, 304, 310, 311),
    "aarch64": (198, 117, 40, 39, 41, 97, 268, 217, 218, 219, 280, 241, 282, 105, 273, 104, 265, 270, 271),
}
_IO_URING = (425, 426, 427)
_CLONE = {"x86_64": 56, "aarch64": 220}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave namespaces of the parent."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount, as mount(2)."""
    text = [part.encode() or None for part in (source, target, kind, options)]
    _checked(_libc.mount(text[0], text[1], text[2], ctypes.c_ulong(flags), text[3]), f"mount {target}")


def make_read_only(target: str) -> None:
    """Make a mount and all below it read-only, without set-user-id programs and devices (Linux 5.12)."""
    attributes = struct.pack("QQQQ", MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)
    result = _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes))
    _checked(result, f"mount_setattr {target}")


def pivot_root(new: str, old: str) -> None:
    """Make ``new`` the root; the old one appears at ``old``."""
    _checked(_libc.syscall(_PIVOT_ROOT[platform.machine()], new.encode(), old.encode()), "pivot_root")


def detach(target: str) -> None:
    """Unmount lazily."""
    _checked(_libc.umount2(target.encode(), 2), f"umount {target}")


def die_with_parent() -> None:
    """Be killed when the parent dies."""
    _checked(_libc.prctl(_PDEATHSIG, 9, 0, 0, 0), "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies."""
    _checked(_libc.prctl(_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def renounce_privileges() -> None:
    """Drop all capabilities, for good."""
    _checked(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    header = struct.pack("Ii", 0x20080522, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")


def filter_calls() -> bool:
    """Refuse the system calls for sockets, mounts, tracing, namespaces, keys and the like, for good.

    Returns:
        Whether this machine's architecture is known and its kernel took the filter.
    """
    machine = platform.machine()
    if machine not in _DENIED:
        return False
    refused, missing, allowed = 0x50000 | 1, 0x50000 | 38, 0x7FFF0000  # EPERM, ENOSYS, allow
    denied = (*_DENIED[machine], *_IO_URING)
    program = [
        (0x20, 0, 0, 4),  # load the architecture
        (0x15, 1, 0, _AUDIT_ARCH[machine]),
        (0x06, 0, 0, 0x80000000),  # kill what is another one
        (0x20, 0, 0, 0),  # load the call's number
        (0x35, 0, 1, 0x40000000),  # the x32 interface has numbers of its own
        (0x06, 0, 0, refused),
        (0x15, 0, 1, _CLONE3),  # its flags cannot be read here; libc falls back to clone
        (0x06, 0, 0, missing),
    ]
    for number in denied:
        program += [(0x15, 0, 1, number), (0x06, 0, 0, refused)]
    program += [
        (0x15, 0, 3, _CLONE[machine]),
        (0x20, 0, 0, 16),  # load clone's flags
        (0x45, 0, 1, CLONE_NEWUSER),
        (0x06, 0, 0, refused),
        (0x06, 0, 0, allowed),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code)
    prog = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    return _libc.prctl(_SECCOMP, 2, prog, 0, 0) == 0  # type: ignore[no-any-return]
