"""Many requests at once, and many one after another."""
