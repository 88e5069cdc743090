"""Reader for the Chrome traces of torch.profiler (Kineto)."""
