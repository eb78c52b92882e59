"""Reading traces wherever people have them: OTLP files, pipes and Jaeger, with a count of what could not be read."""
