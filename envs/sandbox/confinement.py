"""Confinement of the calling process, step by step: namespaces, file tree, limits, identity, Landlock.

Loaded inside the sandbox. Landlock is the Linux module by which a process restricts its own access to files. Every step
raises ``OSError`` if the kernel refuses it; the supervisor then decides what to do.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import struct
from collections.abc import Iterable
from typing import Any

from turntree.envs.sandbox import kernel

#: readable in every sandbox, besides the interpreter's folders
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("null", "full", "random", "urandom")
#: First id of a range of unused user ids. If the caller is root, each sandbox runs under one of these ids.
_FOREIGN_IDS = 1_000_000_000
_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
# Landlock (Linux 5.13): system-call numbers, and constants of linux/landlock.h. The newest version of the interface
# that the kernel has is used.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
#: version of Landlock's interface -> bit mask of all access rights of files that this version knows
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK, _SCOPES = 3, 3
"""Bit masks of what is forbidden: TCP bind and connect (version 4), abstract sockets and signals to outside (6)."""


def enter_namespaces() -> bool:
    """Leave the parent's file tree, process tree (from the next child on), network and host name.

    Returns:
        Whether the process can change to another user id. An unprivileged user needs a user namespace, which has only
        the user's own id.
    """
    user, group = os.getuid(), os.getgid()
    if user == 0:
        # Root needs no user namespace and keeps the host's user ids. A container's root may lack CAP_SYS_ADMIN.
        with contextlib.suppress(PermissionError):
            kernel.unshare(_NAMESPACES)
            return True
    kernel.unshare(_NAMESPACES | kernel.CLONE_NEWUSER)
    # Since Linux 3.19, setgroups must be denied before an unprivileged process may write its gid_map.
    _put("/proc/self/setgroups", "deny")
    _put("/proc/self/uid_map", f"{user} {user} 1")
    _put("/proc/self/gid_map", f"{group} {group} 1")
    return False


def lock_files(folder: str, paths: list[str]) -> bool:
    """Give up access to all files except ``SYSTEM`` and ``paths`` (both read-only) and the files in ``folder``.

    Returns:
        Whether the kernel supports Landlock.
    """
    devices = [f"/dev/{name}" for name in _DEVICES]
    return _keep_only([*SYSTEM, *paths, *devices], [folder, "/dev/null"])


def _keep_only(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Give up access, for good, to every file that does not lie below one of the paths.

    Args:
        readable: Paths to read from and to execute programs from; missing and inaccessible paths are skipped.
        writable: Paths with all rights.

    Returns:
        Whether the kernel supports Landlock. The caller must have set ``no_new_privs``.

    Raises:
        OSError: If the kernel supports Landlock but refuses the rules.
    """
    version = kernel.call(_CREATE, None, 0, 1)  # LANDLOCK_CREATE_RULESET_VERSION
    if version < 1:
        return False
    rights = _RIGHTS[max(since for since in _RIGHTS if since <= version)]
    # A kernel refuses a struct with fields that it does not know, so pass only the fields of its version: file rights
    # (8 bytes) since version 1, network (8 bytes) since version 4, scopes (8 bytes) since version 6.
    sizes = {1: 8, 4: 16, 6: 24}
    size = sizes[max(since for since in sizes if since <= version)]
    rules = struct.pack("QQQ", rights, _NETWORK, _SCOPES)[:size]
    ruleset = kernel.checked(kernel.call(_CREATE, rules, size, 0), "landlock_create_ruleset")
    for paths, allowed in ((readable, _EXECUTE | _READ_FILE | _READ_DIR), (writable, rights)):
        for path in paths:
            # Landlock refuses every right in the ruleset that no rule allows, so a skipped path stays closed.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                _allow(ruleset, path, allowed & rights)
    kernel.checked(kernel.call(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
    return True


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    # The kernel refuses a rule that gives a file a right that only folders have, such as READ_DIR.
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    rule = struct.pack("=Qi", rights, descriptor)
    kernel.checked(kernel.call(_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    os.close(descriptor)


def build_file_tree(paths: list[str], *, disk_bytes: int) -> None:
    """Replace the file tree by an empty tree in memory, with parts of the old tree mounted read-only.

    Args:
        paths: Folders and files to keep besides the system's libraries.
    """
    # Open every path to keep before the new root hides it. /bin and /lib are often symbolic links into /usr; links are
    # created again instead of being mounted.
    kept = [(path, os.open(path, os.O_PATH)) for path in _outermost([*SYSTEM, *paths]) if not os.path.islink(path)]
    links = [(path, os.readlink(path)) for path in SYSTEM if os.path.islink(path)]
    devices = [(name, os.open(f"/dev/{name}", os.O_PATH)) for name in _DEVICES]
    # Private: no mount of this process appears in the parent's namespace. pivot_root also refuses shared mounts.
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    root = "/tmp"  # exists on every system; the tmpfs mounted on it becomes "/"
    # nr_inodes limits the number of files: empty files would use kernel memory that disk_bytes does not count.
    options = f"size={disk_bytes},nr_inodes=10000,mode=755"
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    for path, descriptor in kept:
        _bind(descriptor, root + path)
        # A bind mount ignores MS_RDONLY, and remounting it read-only would leave mounts inside it writable.
        kernel.make_read_only(root + path)
    for name, descriptor in devices:
        _bind(descriptor, f"{root}/dev/{name}")
    for path, target in links:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(target, root + path)
    for folder in ("proc", "tmp", "dev/shm", "old"):  # multiprocessing creates its semaphores in /dev/shm
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    for folder in ("tmp", "dev/shm"):
        os.chmod(f"{root}/{folder}", 0o1777)
    # The new /proc shows only the processes of this process tree. In containers that hide parts of /proc, the kernel
    # refuses the mount, and the sandbox has an empty /proc.
    with contextlib.suppress(OSError):
        kernel.mount("proc", f"{root}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.pivot_root(root, f"{root}/old")
    os.chdir("/tmp")  # before the old tree is detached, because the working folder still lies in it
    kernel.detach("/old")
    os.rmdir("/old")


def foreign_id(number: int) -> int | None:
    return _FOREIGN_IDS + number if os.getuid() == 0 else None


def limit_resources(limits: dict[str, Any]) -> None:
    # RLIMIT_AS also counts the address space that the interpreter has already reserved, so add that to the limit.
    memory = limits["memory_bytes"] + _address_space()
    for kind, bound in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, int(limits["cpu_seconds"])),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, limits["processes"]),
    ):
        # Only root may raise a hard limit, so keep a lower hard limit that the caller has.
        highest = resource.getrlimit(kind)[1]
        bound = bound if highest == resource.RLIM_INFINITY else min(bound, highest)
        resource.setrlimit(kind, (bound, bound))


def give_up_identity(user: int | None, paths: list[str], *, reads_all: bool) -> str:
    """Change to another user, if one is given, and drop all privileges.

    Python may lie in a folder that the new user may not read, such as root's home. With ``reads_all``, the process then
    keeps the privilege to read any file; the caller must restrict the process to ``paths`` with Landlock.

    Returns:
        The first of ``paths`` that the process can read only with this privilege; empty if the privilege was dropped.

    Raises:
        OSError: For example, if the user cannot read the interpreter's library.
    """
    paths = [path for path in (os.__file__, *paths) if os.path.exists(path)]
    closed = ""
    if user is not None:
        # Capabilities must survive setresuid, because the one to read any file may be needed. Drop the groups before
        # the user id: without user id 0, groups can no longer be changed.
        kernel.keep_capabilities()
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        closed = next((path for path in paths if reads_all and not os.access(path, os.R_OK)), "")
    kernel.renounce_privileges(but_to_read=bool(closed))
    os.close(os.open(os.__file__, os.O_RDONLY))  # fail here, not at the first import of the code
    return closed


def _address_space() -> int:
    with contextlib.suppress(OSError), open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _outermost(paths: list[str]) -> list[str]:
    # Returns the existing paths that do not lie inside another of the paths.
    real = sorted({path.rstrip("/") for path in paths if os.path.exists(path)} - {""})
    return [path for path in real if not any(path.startswith(f"{other}/") for other in real)]


def _bind(descriptor: int, target: str) -> None:
    # The new root may already hide the source's path, but the open descriptor still works.
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))  # a file can only be mounted over a file
    kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)
    os.close(descriptor)


def _put(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
