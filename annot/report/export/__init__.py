"""Exports of a report: JSON, CSV, Parquet, TensorBoard, Chrome traces and Nsight Systems reports."""
