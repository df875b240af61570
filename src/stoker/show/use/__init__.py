"""A trained model in use, as a person sees it."""
