"""Reading what `stoker export` wrote, without trust: its files, and ONNX graphs as models."""
