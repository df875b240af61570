"""Nothing is lost: checkpoints and orderly stops."""
