"""Reader for nvprof: CSV output and SQLite files."""
