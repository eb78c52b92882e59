"""Setting everything up in one call: providers, OTLP, the processor, forks and the end of the process."""
