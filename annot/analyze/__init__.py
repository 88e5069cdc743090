"""Analyses of attributed profiles: expected work, kernels, Tensor Cores, roofline, bottlenecks, advice, comparison."""
