"""Loggers of metrics and records: the console, metrics.jsonl, TensorBoard, and one log per process."""
