"""Bounded reading of untrusted array files.

The format is that of ``numpy.savez``: a zip archive of uncompressed ``.npy`` members. Whatever a file contains, reading
needs no more memory than the file's size and a constant, executes nothing, and raises only ``DamagedFile`` (or
``OSError``). Not checked: whether the arrays are consistent with each other.
"""

from __future__ import annotations

import math
import os
import re
import stat
import struct
import zlib
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from turntree.spec_tree.errors import DamagedFile

_MOST_MEMBERS = 64
_MOST_NAME = 64
_MOST_HEADER = 512  #: maximum bytes of a member's ``.npy`` header, and of its zip header's extra fields
_DIRECTORY_ENTRY = 46 + 2 * _MOST_NAME
#: Local header of a zip member: mark, version, flags, method, time, date, CRC, packed size, size, name, extra.
_LOCAL = struct.Struct("<4s5H3I2H")
_ZIP64 = struct.Struct("<HHQQ")  #: Extra field with a member's sizes in 64 bits: id, length, size, packed size.
_HEADER = re.compile(
    rb"\{'descr': '([<|][biuf][1248])', 'fortran_order': (True|False), 'shape': \(((?:\d{1,18},? ?){0,4})\), \} *\n"
)


class Member(NamedTuple):
    """One array of an array file: its format, and where its bytes are."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool  #: whether the first index changes fastest
    begin: int  #: offset of the ``.npy`` header in the file
    header: int  #: bytes of the ``.npy`` header
    size: int  #: bytes of header and data
    crc: int  #: CRC-32 of header and data


def open_regular(path: str | os.PathLike[str], *, most: int) -> BufferedReader:
    """Open a regular file of at most ``most`` bytes; never block on a pipe or a device.

    Raises:
        DamagedFile: If the path is not a regular file, or the file is longer than ``most``.
        OSError: If the file cannot be opened.
    """
    # O_NONBLOCK: opening a pipe without a writer would block for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedFile("it is not a regular file")
        if status.st_size > most:
            raise DamagedFile(f"it has {status.st_size} bytes, expected at most {most}")
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | os.PathLike[str], *, most: int) -> bytes:
    """Return the contents of a regular file; arguments and errors are as for ``open_regular``."""
    with open_regular(path, most=most) as file:
        data = file.read(most + 1)  # the file may grow while it is read
    if len(data) > most:
        raise DamagedFile(f"it grew beyond {most} bytes")
    return data


class ArrayFile:
    """The arrays of an open file.

    Args:
        file: A file in the format of ``numpy.savez``, with nothing before or after the archive.

    Raises:
        DamagedFile: If the file has another format or is incomplete.

    Example:
        >>> from io import BytesIO
        >>> file = BytesIO()
        >>> np.savez(file, lengths=np.array([3, 4]))
        >>> arrays = ArrayFile(file)
        >>> arrays.members["lengths"].shape, arrays.read("lengths").tolist()
        ((2,), [3, 4])
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        self.members: dict[str, Member] = {}  #: the arrays by name
        offset = file.seek(0)
        while (mark := self._bytes(offset, 4)) == b"PK\3\4":
            name, member = self._member(offset)
            if name in self.members or len(self.members) == _MOST_MEMBERS:
                raise DamagedFile(f"it has {name} twice, or more than {_MOST_MEMBERS} arrays")
            self.members[name] = member
            offset = member.begin + member.size
        remaining, count = self._size - offset, len(self.members)
        # The zip directory after the members is not read; its presence shows that the file is complete.
        if mark not in (b"PK\1\2", b"PK\5\6") or not 22 <= remaining <= (count + 1) * _DIRECTORY_ENTRY:
            raise DamagedFile("it cannot be read as .npz: expected uncompressed arrays and their directory")
        if self._bytes(self._size - 22, 12) != struct.pack("<4s4H", b"PK\5\6", 0, 0, count, count):
            raise DamagedFile(f"it cannot be read as .npz: its directory does not list the {count} arrays before it")

    def read(self, name: str) -> NDArray[Any]:
        """Return the member ``name`` as a read-only array; raise ``DamagedFile`` if its checksum differs."""
        member = self.members[name]
        data = self._bytes(member.begin, member.size)
        if zlib.crc32(data) != member.crc:
            raise DamagedFile(f"{name} has a wrong checksum")
        array = np.frombuffer(data, member.dtype, offset=member.header)
        if member.dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            raise DamagedFile(f"{name} has truth values other than 0 and 1")
        return array.reshape(member.shape[::-1]).T if member.fortran else array.reshape(member.shape)

    def read_all(self, kinds: Mapping[str, tuple[DTypeLike, int]]) -> dict[str, NDArray[Any]]:
        """Return all ``members`` if their dtypes and numbers of dimensions are as ``kinds`` says.

        Raises:
            DamagedFile: If a member is missing, unknown, of another kind, or damaged.
        """
        if self.members.keys() != kinds.keys():
            different = ", ".join(sorted(self.members.keys() ^ kinds.keys()))
            raise DamagedFile(f"it has missing or unknown entries: {different}")
        for name, (dtype, dimensions) in kinds.items():
            member = self.members[name]
            if member.dtype != dtype or len(member.shape) != dimensions:
                raise DamagedFile(
                    f"{name} has dtype {member.dtype} and shape {member.shape}, expected {np.dtype(dtype)} and "
                    f"{dimensions} dimension(s)"
                )
        return {name: self.read(name) for name in kinds}

    def _member(self, offset: int) -> tuple[str, Member]:
        _, _, flags, method, _, _, crc, packed, size, name_size, extra_size = _LOCAL.unpack(
            self._bytes(offset, _LOCAL.size)
        )
        if flags & ~0x800 or method:  # 0x800: the name is UTF-8
            raise DamagedFile("it cannot be read as .npz: one of its arrays is compressed or encrypted")
        if name_size > _MOST_NAME or extra_size > _MOST_HEADER:
            raise DamagedFile("it cannot be read as .npz: the name of one of its arrays is too long")
        offset += _LOCAL.size
        name = self._bytes(offset, name_size).decode("ascii", "backslashreplace")
        extra, begin = self._bytes(offset + name_size, extra_size), offset + name_size + extra_size
        if extra_size >= _ZIP64.size and size == packed == 0xFFFFFFFF:
            field, length, size, packed = _ZIP64.unpack_from(extra)
            if (field, length) != (1, 16):
                raise DamagedFile(f"it cannot be read as .npz: the size of {name} is missing")
        if size != packed or not name.endswith(".npy"):
            raise DamagedFile(f"it cannot be read as .npz: {name} is not an array")
        name = name.removesuffix(".npy")
        start = self._bytes(begin, min(size, 10))
        header = 10 + int.from_bytes(start[8:], "little")
        if start[:8] != b"\x93NUMPY\1\0" or header > _MOST_HEADER or header > size:
            raise DamagedFile(f"{name} is not an array of format 1.0")
        header_match = _HEADER.fullmatch(self._bytes(begin + 10, header - 10))
        if header_match is None:
            raise DamagedFile(f"{name} has an unsupported dtype or shape; objects (allow_pickle) are never read")
        try:
            dtype = np.dtype(header_match[1].decode())
        except TypeError:
            raise DamagedFile(f"{name} has the dtype {header_match[1]!r}") from None
        shape = tuple(int(number) for number in header_match[3].replace(b",", b" ").split())
        if header + math.prod(shape) * dtype.itemsize != size or begin + size > self._size:
            raise DamagedFile(f"{name} of shape {shape} and dtype {dtype} does not have {size} bytes")
        return name, Member(dtype, shape, header_match[2] == b"True", begin, header, size, crc)

    def _bytes(self, offset: int, count: int) -> bytes:
        data = b""
        if 0 <= offset <= self._size - count:
            self._file.seek(offset)
            data = self._file.read(count)
        if len(data) < count:
            raise DamagedFile("it cannot be read as .npz: it is incomplete")
        return data


def read_array_file(path: Path, kinds: Mapping[str, tuple[DTypeLike, int]], *, most: int) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file by ``open_regular`` and ``ArrayFile.read_all``."""
    with open_regular(path, most=most) as file:
        return ArrayFile(file).read_all(kinds)
