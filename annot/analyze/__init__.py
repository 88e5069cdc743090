"""What the time of layers means: expected work, kernels, Tensor Cores, roofline, bottlenecks, advice, comparison."""
