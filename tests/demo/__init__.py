"""The examples: those that serve the real model under the marker ``demo``, the others in the quick suite."""
