"""The fit of the planner's tables, one module for each."""
