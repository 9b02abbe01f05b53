"""Settings of every test: property tests draw the same examples on every run."""

import gc

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile(
    "specjax", derandomize=True, deadline=None, database=None, max_examples=40
)
hypothesis.settings.load_profile("specjax")


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Each program holds memory maps, of which a process may have 65,530: a whole run would use them up."""
    yield
    jax.clear_caches()
    gc.collect()
