"""How a result is shown: terminal, JSON, CSV, one self-contained page."""
