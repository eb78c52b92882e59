"""The OpenTelemetry set-up of a program: what is present, what is missing, and the remedy."""
