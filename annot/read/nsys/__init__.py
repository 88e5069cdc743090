"""Reader for Nsight Systems: SQLite exports, Parquet exports and ``.nsys-rep`` files."""
