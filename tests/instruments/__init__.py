"""Instruments against the real SDK."""
