"""Where images come from: folders, archives, tables, URLs."""
