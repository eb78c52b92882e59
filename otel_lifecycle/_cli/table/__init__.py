"""The table of requests: a row per request, which every command reads and users can query."""
