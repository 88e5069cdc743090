"""The MCP server: the tools over standard input and output, with errors in one line that say the next call."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import ToolAnnotations
from pydantic import ValidationError

from annot.agents.folders import LIST, Folders, RefusedError
from annot.agents.tools import Tools
from annot.errors import AnnotError
from annot.report.units import printable
from annot.util.distribution import version

GUIDE: Final = "annot://guide/agents"
"""Address of the guide."""
_INSTRUCTIONS: Final = f"""\
annot says which layer of a deep-learning model used the time, forward and backward, and why. Start with
summary(profile), or open(path=".") for the profiles. Times are in ns, row keys are layer, module and phase. {GUIDE}
explains units, keys and limits on one page."""
_READING: Final = ("open", "summary", "rows", "explain_row", "compare", "advice")
"""Tools that write nothing."""
_LARGEST_REQUEST: Final = 10_000
"""Maximum length of the arguments of a request, in characters of JSON."""
_LONGEST_ERROR: Final = 900


def serve(folders: Folders, *, allow_run: bool) -> None:
    """Serve until standard input ends.

    Args:
        folders: the folders whose profiles may be read.
        allow_run: whether to offer the tool `record`, which runs commands.
    """
    make_server(Tools(folders), allow_run=allow_run).run("stdio")


def make_server(tools: Tools, *, allow_run: bool) -> MCPServer:
    """Return the server with its tools and the guide."""
    server = _Server("annot", instructions=_INSTRUCTIONS, version=version(), log_level="WARNING")
    lock = threading.Lock()
    for name in (*_READING, *(["record"] if allow_run else [])):
        reads = name in _READING  # `record` runs any command, which may delete files and use the network
        hints = ToolAnnotations(read_only_hint=reads, destructive_hint=not reads, open_world_hint=not reads)
        server.add_tool(_one_at_a_time(getattr(tools, name), lock), annotations=hints, structured_output=False)

    @server.resource(GUIDE, name="agents", mime_type="text/markdown")
    def guide() -> str:
        """Return the guide for agents: tools, units, keys, limits."""
        return (files("annot") / "guide" / "agents.md").read_text(encoding="utf-8")

    return server


class _Server(MCPServer):
    """Server whose refusals are one line each."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool; see `MCPServer.call_tool`."""
        tools = {tool.name: tool.input_schema["properties"] for tool in await self.list_tools()}
        if name not in tools:
            raise ToolError(f"annot has no tool {_line(name)}; tools: {', '.join(tools)}")
        if unknown := [argument for argument in arguments if argument not in tools[name]]:
            raise ToolError(f"{name} has no argument {_line(unknown[0])}; arguments: {', '.join(tools[name])}")
        if (size := len(json.dumps(arguments))) > _LARGEST_REQUEST:
            raise ToolError(
                f"the arguments of {name} have {size:,} characters. Call it with {_LARGEST_REQUEST:,} or less"
            )
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError:
            raise
        except ToolError as error:
            raise ToolError(_line(_reason(name, error))) from None


def _reason(name: str, error: ToolError) -> str:
    """Why a tool refuses a request."""
    if not isinstance(error.__cause__, ValidationError):
        return str(error.__cause__ or error)
    wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.__cause__.errors()]
    return f"wrong arguments of {name}: {'; '.join(wrong)}"


def _line(text: str) -> str:
    """A text as one line, cut if it is long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"


def _one_at_a_time(tool: Callable[..., str], lock: threading.Lock) -> Callable[..., str]:
    """Return a tool that waits for other calls, because calls share open profiles, and whose errors are refusals."""

    @functools.wraps(tool)
    def locked(*args: Any, **kwargs: Any) -> str:
        with lock:
            try:
                return tool(*args, **kwargs)
            except (RefusedError, TypeError, ValueError) as error:
                raise ToolError(str(error)) from None
            except (AnnotError, OSError) as error:
                raise ToolError(f"{str(error).removesuffix('.')}. {LIST}") from None

    return locked
