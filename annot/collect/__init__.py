"""Collection of profiles: `annot run` with Nsight Systems, the recorder or torch.profiler, and `annot.record`."""
