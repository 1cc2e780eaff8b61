"""An MCP server over stdio whose tools answer, count, refuse, take their time and die."""

import os
import sys
import time
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("support")
seen: list[str] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def count(word: str) -> int:
    """Count the words so far."""
    seen.append(word)
    return len(seen)


@server.tool()
def refuse() -> str:
    """Refuse."""
    raise ValueError("not for sale")


@server.tool()
def linger(seconds: float) -> str:
    """Take some time."""
    time.sleep(seconds)
    return "done"


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool(structured_output=False)
def give(what: str = "é😀中") -> Any:
    """Give something."""
    return {"nothing": None, "object": {"a": 1}, "long": "x" * 2_000_000}.get(what, what)


if __name__ == "__main__":
    if sys.argv[1:] == ["mute"]:
        time.sleep(600)
    server.run("stdio")
