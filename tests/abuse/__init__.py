"""Clients that choose names, ids and headers to do harm, and secrets that must not leave."""
