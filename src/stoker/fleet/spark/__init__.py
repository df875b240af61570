"""Tasks on a Spark cluster: a session, and functions that are mapped over its workers."""
