"""What is set up for OpenTelemetry in a program, what is not, and what to do about it."""
