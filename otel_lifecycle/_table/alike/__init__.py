"""Reading spans that differ in values alone: a pattern of their text takes the place of parsing and judging each."""
