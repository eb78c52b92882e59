"""The tests; run by `make test`, explained in README.md beside this file."""
