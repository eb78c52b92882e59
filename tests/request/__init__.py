"""The live API: handles, blocks, streams, conditions, and what happens without an SDK."""
