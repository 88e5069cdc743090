"""Emission of NVTX ranges: the NVTX client, `trace`, epochs and batches, layer filters, schedules, patches."""
