"""Settings of every test: property tests draw the same examples on every run."""

import hypothesis

hypothesis.settings.register_profile(
    "specjax", derandomize=True, deadline=None, database=None, max_examples=40
)
hypothesis.settings.load_profile("specjax")
