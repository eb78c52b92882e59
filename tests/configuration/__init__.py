"""Setting everything up: configure(), its settings, and shutdown()."""
