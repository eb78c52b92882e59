"""One request, closely: its spans, its tokens, and what stalled."""
