"""The receiver, the live page and the command that runs a server under both."""
