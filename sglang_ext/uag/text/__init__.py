"""Both ways between the texts of two tokenizers. Pure: no engine, no torch."""
