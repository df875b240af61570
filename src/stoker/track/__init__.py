"""Followers of a run directory, which copy its curves to a tracker: TensorBoard, MLflow, W&B, CSV.

They run beside training, in processes of their own, and only read the run.
"""
