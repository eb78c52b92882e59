"""What the ASGI and the WSGI middleware share: routes, the caller's trace, tokens of a body, a timing header."""
