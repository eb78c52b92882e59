"""collector-config/ against the real Collector, Jaeger, Prometheus and Alertmanager."""
