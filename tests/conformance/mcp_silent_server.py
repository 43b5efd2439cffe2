"""An MCP server that answers what comes before one method, and from then on nothing."""

from __future__ import annotations

import json
import sys

STARTED = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}

for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == sys.argv[1]:
        break
    if asked["method"] == "initialize":
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": STARTED}), flush=True)
    elif "id" in asked:
        error = {"code": -32601, "message": "no such method"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
sys.stdin.read()
