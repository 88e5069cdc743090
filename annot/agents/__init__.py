"""Profiles for language models: the tools of the MCP server, and their limits."""
