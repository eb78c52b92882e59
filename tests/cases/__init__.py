"""Public failures of real servers, each a test under its number; README.md beside this folder maps them."""
