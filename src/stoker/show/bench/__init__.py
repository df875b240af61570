"""What a person sees of a benchmark of training: terminal, Markdown, CSV, HTML."""
