import jax
import pytest


@pytest.fixture(scope="module")
def compile_fast():
    """For many small programs, each run for milliseconds: optimizing them would be most of the time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
