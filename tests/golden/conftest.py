"""The script imports torch and transformers, which the tests do without."""

collect_ignore = ["make_golden.py"]
