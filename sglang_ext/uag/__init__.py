"""Universal assisted generation: a draft model of any tokenizer speeds up a target."""
