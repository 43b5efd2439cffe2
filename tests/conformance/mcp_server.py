"""An MCP server of the real package, with tools that work, fail and die, and one that judges."""

from __future__ import annotations

import os
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("sums")
sums: list[int] = []


@server.tool()
def add(a: int, b: int) -> int:
    """The sum of two numbers; of 13 none is known, and 99 is the end."""
    if 99 in (a, b):
        os._exit(9)
    if 13 in (a, b):
        raise ToolError("no sums of 13")
    sums.append(a + b)
    return a + b


@server.tool()
def check(row: dict[str, Any], reply: str) -> float:
    """Judges: which part of what the row wants was added in this episode, and said."""
    wanted = row["wanted"]
    return sum(one in sums and str(one) in reply for one in wanted) / len(wanted)


if __name__ == "__main__":
    server.run()
