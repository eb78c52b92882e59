"""A receiver of OTLP on the loopback, the requests it keeps in memory, and the page that shows them."""
