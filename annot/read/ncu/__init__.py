"""Reader for Nsight Compute: ``.ncu-rep`` files and CSV exports."""
