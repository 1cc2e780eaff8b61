"""A file system in memory. Names are local: a call works in the current directory and moves one level at a time.

The tree alone is judged, not where in it the policy stands, which shows in what later calls do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from turntree.envs.bfcl.simulated.simulator import Simulator, copied, one_of
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool

Node = dict[str, Any]
"""``{"type": "file", "content": text}`` or ``{"type": "directory", "contents": {name: node}}``."""
_COUNTS = {"l": "lines", "w": "words", "c": "characters"}


class FileSystem(Simulator):
    """Files and directories below one root."""

    initial = {"root": {"workspace": {"type": "directory", "contents": {}}}}

    def load(self, configuration: Mapping[str, Any]) -> None:
        """Begin in the first directory of the root."""
        super().load(configuration)
        self._path = list(self.state["root"])[:1]

    @tool
    def pwd(self) -> dict[str, str]:
        """The path of the current directory."""
        return {"current_working_directory": "/" + "/".join(self._path)}

    @tool
    def ls(self, a: bool = False) -> dict[str, list[str]]:
        """List the current directory.

        Args:
            a: Whether hidden names are listed too
        """
        return {"current_directory_content": [name for name in self._here() if a or not name.startswith(".")]}

    @tool
    def cd(self, folder: str) -> dict[str, str]:
        """Go into a directory, or up with two dots.

        Args:
            folder: Name of the directory
        """
        if folder == "..":
            if len(self._path) < 2:
                raise ToolError("this is the highest directory")
            self._path.pop()
        else:
            self._directory(folder)
            self._path.append(folder)
        return {"current_working_directory": "/" + "/".join(self._path)}

    @tool
    def mkdir(self, dir_name: str) -> dict[str, str]:
        """Make a directory.

        Args:
            dir_name: Its name
        """
        self._here()[self._unused(dir_name)] = {"type": "directory", "contents": {}}
        return {}

    @tool
    def touch(self, file_name: str) -> dict[str, str]:
        """Make an empty file.

        Args:
            file_name: Its name
        """
        self._here()[self._unused(file_name)] = {"type": "file", "content": ""}
        return {}

    @tool
    def echo(self, content: str, file_name: str | None = None) -> dict[str, str | None]:
        """Write a text to a file, which then holds nothing else, or show it.

        Args:
            content: The text
            file_name: The file; without it the text is shown
        """
        if not file_name or file_name == "None":
            return {"terminal_output": content}
        if file_name in self._here():
            self._file(file_name)["content"] = content
        else:
            self._here()[self._unused(file_name)] = {"type": "file", "content": content}
        return {"terminal_output": None}

    @tool
    def cat(self, file_name: str) -> dict[str, str]:
        """Show a file.

        Args:
            file_name: Its name
        """
        return {"file_content": self._text(file_name)}

    @tool
    def tail(self, file_name: str, lines: int = 10) -> dict[str, str]:
        """Show the end of a file.

        Args:
            file_name: Its name
            lines: How many lines
        """
        return {"last_lines": "\n".join(self._text(file_name).split("\n")[-lines:] if lines > 0 else [])}

    @tool
    def grep(self, file_name: str, pattern: str) -> dict[str, list[str]]:
        """Find the lines of a file that contain a text.

        Args:
            file_name: Its name
            pattern: The text
        """
        return {"matching_lines": [line for line in self._text(file_name).split("\n") if pattern in line]}

    @tool
    def sort(self, file_name: str) -> dict[str, str]:
        """Show a file with its lines in order; the file stays as it is.

        Args:
            file_name: Its name
        """
        return {"sorted_content": "\n".join(sorted(self._text(file_name).split("\n")))}

    @tool
    def wc(self, file_name: str, mode: str = "l") -> dict[str, int | str]:
        """Count the lines, words or characters of a file.

        Args:
            file_name: Its name
            mode: l, w or c
        """
        text = self._text(file_name)
        counts = {"l": len(text.splitlines()), "w": len(text.split()), "c": len(text)}
        return {"count": counts[one_of(mode, _COUNTS, "mode")], "type": _COUNTS[mode]}

    @tool
    def diff(self, file_name1: str, file_name2: str) -> dict[str, str]:
        """Show the lines in which two files differ, with - and + before them.

        Args:
            file_name1: The first file
            file_name2: The second file
        """
        first, second = self._text(file_name1).split("\n"), self._text(file_name2).split("\n")
        lines = difflib.unified_diff(first, second, n=0, lineterm="")
        return {"diff_lines": "\n".join(f"{line[0]} {line[1:]}" for line in list(lines)[2:] if line[0] in "-+")}

    @tool
    def find(self, path: str = ".", name: str | None = None) -> dict[str, list[str]]:
        """Find files and directories below one by a part of their names.

        Args:
            path: Where to begin; a dot is the current directory
            name: The part; without it all are listed
        """
        start = self._here() if path == "." else self._directory(path)["contents"]
        part = "" if name == "None" else name or ""
        return {"matches": [f"{path}/{found}" for found, _ in _below(start) if part in found.rpartition("/")[2]]}

    @tool
    def du(self, human_readable: bool = False) -> dict[str, str]:
        """How many bytes all files below the current directory take.

        Args:
            human_readable: Whether to name the unit
        """
        used = sum(len(str(node.get("content", "")).encode("utf-8", "replace")) for _, node in _below(self._here()))
        return {"disk_usage": f"{used} bytes" if human_readable else str(used)}

    @tool
    def mv(self, source: str, destination: str) -> dict[str, str]:
        """Move a file or directory into a directory, or give it another name.

        Args:
            source: What to move
            destination: A directory here, or the new name
        """
        self._find(source)
        folder, name = self._target(source, destination)
        folder[name] = self._here().pop(source)
        return {"result": f"{source} is moved to {destination}"}

    @tool
    def cp(self, source: str, destination: str) -> dict[str, str]:
        """Copy a file or directory into a directory, or under another name.

        Args:
            source: What to copy
            destination: A directory here, or the name of the copy
        """
        node = copied(self._find(source))
        folder, name = self._target(source, destination)
        folder[name] = node
        return {"result": f"{source} is copied to {destination}"}

    @tool
    def rm(self, file_name: str) -> dict[str, str]:
        """Remove a file or a directory with all that is in it.

        Args:
            file_name: Its name
        """
        self._find(file_name)
        del self._here()[file_name]
        return {"result": f"{file_name} is removed"}

    @tool
    def rmdir(self, dir_name: str) -> dict[str, str]:
        """Remove an empty directory.

        Args:
            dir_name: Its name
        """
        if self._directory(dir_name)["contents"]:
            raise ToolError(f"{dir_name} is not empty")
        del self._here()[dir_name]
        return {"result": f"{dir_name} is removed"}

    def _here(self) -> dict[str, Node]:
        contents: dict[str, Node] = self.state["root"]
        for name in self._path:
            contents = contents[name]["contents"]
        return contents

    def _find(self, name: str) -> Node:
        node = self._here().get(name)
        if node is None:
            raise ToolError(f"there is no {name!r} here")
        return node

    def _directory(self, name: str) -> Node:
        node = self._find(name)
        if node["type"] != "directory":
            raise ToolError(f"{name!r} is not a directory")
        return node

    def _file(self, name: str) -> Node:
        node = self._find(name)
        if node["type"] != "file":
            raise ToolError(f"{name!r} is not a file")
        return node

    def _text(self, name: str) -> str:
        return str(self._file(name)["content"])

    def _unused(self, name: str, contents: Mapping[str, Node] | None = None) -> str:
        if not name or "/" in name or name in (".", ".."):
            raise ToolError(f"{name!r} is not a name")
        if name in (self._here() if contents is None else contents):
            raise ToolError(f"there is a {name!r} already")
        return name

    def _target(self, source: str, destination: str) -> tuple[dict[str, Node], str]:
        """The directory and the name under which something comes to lie."""
        node = self._here().get(destination)
        if node is None or node["type"] != "directory":
            return self._here(), self._unused(destination)
        if destination == source:
            raise ToolError(f"{source!r} cannot come to lie in itself")
        contents: dict[str, Node] = node["contents"]
        return contents, self._unused(source, contents)


def _below(contents: Mapping[str, Node]) -> Iterator[tuple[str, Node]]:
    """Path and node of everything in a directory, at any depth."""
    for name, node in contents.items():
        yield name, node
        for path, inner in _below(node.get("contents", {})):
            yield f"{name}/{path}", inner
