"""Programs that the tests run as processes of their own: ``python -m tests.faults.programs.NAME``."""
