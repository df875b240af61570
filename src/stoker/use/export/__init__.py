"""Writing a trained model for use elsewhere: weights, programs, their description and card."""
