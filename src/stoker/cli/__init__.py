"""The commands: one small module a verb. Parse, call, show; no logic, no torch at import."""
