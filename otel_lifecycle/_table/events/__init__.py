"""Raw event logs: from lines of JSON or CSV to requests, and from requests to OTLP."""
