"""The public test kit: exact laws, known-lossy controls, chi-square with its power, tiny models, parity."""
