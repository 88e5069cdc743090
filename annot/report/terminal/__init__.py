"""Terminal renderers of reports."""
