"""Landlock (Linux 5.13): a process gives up access to all files but some, without privileges.

Loaded inside the sandbox too. The numbers are those of linux/landlock.h. Later versions are used if the kernel has
them.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterable

from turntree.envs.sandbox import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
#: all access rights of files, by the version that introduced them
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK, _SCOPES = 3, 3
"""Binding and connecting TCP (version 4); abstract sockets and signals to processes outside (version 6)."""


def keep_only(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Give up access, for good, to every file that does not lie below one of the paths.

    Args:
        readable: Paths to read from and to execute programs from; missing or invisible ones are skipped.
        writable: Paths with all rights.

    Returns:
        Whether the kernel supports Landlock. The caller must have set ``no_new_privs``.

    Raises:
        OSError: If the kernel supports it but refuses.
    """
    version = kernel.call(_CREATE, None, 0, 1)
    if version < 1:
        return False
    rights = _RIGHTS[max(since for since in _RIGHTS if since <= version)]
    sizes = {1: 8, 4: 16, 6: 24}
    size = sizes[max(since for since in sizes if since <= version)]
    rules = struct.pack("QQQ", rights, _NETWORK, _SCOPES)[:size]
    ruleset = kernel.checked(kernel.call(_CREATE, rules, size, 0), "landlock_create_ruleset")
    for paths, allowed in ((readable, _EXECUTE | _READ_FILE | _READ_DIR), (writable, rights)):
        for path in paths:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                _allow(ruleset, path, allowed & rights)
    kernel.checked(kernel.call(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
    return True


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    rule = struct.pack("=Qi", rights, descriptor)
    kernel.checked(kernel.call(_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    os.close(descriptor)
