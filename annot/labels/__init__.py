"""Range names and marks: annot's grammar, layer paths, and the label formats of other tools."""
