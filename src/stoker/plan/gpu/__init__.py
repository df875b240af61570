"""Throughput and memory of a training on a GPU, forecast from counted operations."""
