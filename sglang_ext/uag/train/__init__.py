"""Training of a small draft model on what a target writes."""
