"""Where metrics and records go: the console, metrics.jsonl, TensorBoard, the log of each process."""
