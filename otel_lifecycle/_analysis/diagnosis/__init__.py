"""From the symptom to the next place to look."""
