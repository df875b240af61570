"""One resource measured alone: data loading, storage, the link between machines."""
