"""Reports: views of a profile and their renderers for the terminal, the HTML page, charts and files."""
