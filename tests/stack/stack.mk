# The real backends. `make stack` builds them once; `make test-stack` starts them on free loopback ports, built first
# where there is Go: what is missing when tests are collected is skipped, and a first build is no test's time.

.PHONY: stack
stack: $(STAMP) ## build the real Collector, Jaeger, Prometheus and Alertmanager (Go; once, some 20 minutes)
	@command -v go >/dev/null || { echo 'make stack: Go 1.26 or newer is needed to build the programs' >&2; exit 1; }
	$(BIN)/python -m tests.stack.build

.PHONY: test-stack
test-stack: $(STAMP) $(if $(shell command -v go 2>/dev/null),stack) ## collector-config/ on the real programs
	$(BIN)/python -m pytest -m stack --timeout=2400 $(ARGS)

.PHONY: drill
drill: $(STAMP) stack ## faults against the real programs; prints what each alert did
	$(BIN)/python -m tests.stack.drill
