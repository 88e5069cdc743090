"""Reader for the files of annot's recorder, and their export to SQLite in the layout of Nsight Systems."""
