"""Models that can be served without a model hub."""
