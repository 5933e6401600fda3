"""Where weights come from: folders, GGUF files, packages, hubs. Knows file formats; no model maths."""
