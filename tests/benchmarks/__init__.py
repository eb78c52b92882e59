"""What a token and a request cost, as ratios measured inside one run; `make bench`, explained in README.md here."""
