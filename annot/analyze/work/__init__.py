"""Expected work of each layer: FLOPs, bytes and parameters, from the shapes and arguments in its range labels."""
