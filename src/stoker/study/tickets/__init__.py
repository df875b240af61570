"""Lottery tickets: studies of pruned models that are trained again."""
