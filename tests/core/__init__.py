"""Tests of the pure core: the table and the four functions."""
