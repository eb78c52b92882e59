"""The table in the middle: a row per request, which every command reads and users can query."""
