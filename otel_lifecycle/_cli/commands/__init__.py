"""One module a command: it parses its options, calls the layers below and prints."""
