import ast

import pytest

from specjax.data import corpora


@pytest.fixture(scope="module")
def library():
    return corpora.standard_library()


def names(corpus):
    return [module.name for module in corpus.modules]


def test_every_held_out_module_exists_and_none_is_trained_on(library):
    training, held_out = library
    assert set(names(held_out)) == set(corpora.HELD_OUT_MODULES)
    assert not set(names(training)) & set(names(held_out))
    held_out_texts = {module.text for module in held_out.modules}
    assert not any(module.text in held_out_texts for module in training.modules)


def test_held_out_share_is_a_few_percent(library):
    training, held_out = library
    assert 0.03 < held_out.num_bytes / (training.num_bytes + held_out.num_bytes) < 0.06


def test_what_is_no_library_code_is_left_out(library):
    for name in names(library[0]):
        assert not set(name.split("/")) & {
            "test",
            "tests",
            "idlelib",
            "site-packages",
            "pydoc_data",
            "encodings",
        }
        assert not name.startswith("_sysconfigdata")


def test_order_and_hash_are_reproducible_and_cover_names_and_texts(library):
    training, _ = library
    assert names(training) == sorted(names(training))
    assert training.sha256 == corpora.standard_library()[0].sha256
    module = corpora.Module(name="a.py", text="x = 1\n")
    for other in (corpora.Module(name="b.py", text="x = 1\n"), corpora.Module(name="a.py", text="x = 2\n")):
        assert corpora.Corpus(modules=(module,)).sha256 != corpora.Corpus(modules=(other,)).sha256


def test_prompts_are_beginnings_of_held_out_functions(library):
    _, held_out = library
    prompts = corpora.held_out_prompts(64, held_out)
    assert prompts == corpora.held_out_prompts(64, held_out)
    assert prompts[:12] == corpora.held_out_prompts(12, held_out)
    assert len(set(prompts)) == 64
    shortest, longest = corpora.PROMPT_CHARACTERS
    flat = "".join("".join(module.text.split()) for module in held_out.modules)
    for prompt in prompts:
        assert shortest <= len(prompt) <= longest
        assert "".join(prompt.split()) in flat
        assert not prompt[-1].isspace()


def test_the_first_prompts_come_from_different_modules():
    text = "def f(a):\n" + "\n".join(f"    a = a + {i} * 1000000000000000000000000" for i in range(12))
    assert ast.parse(text)
    modules = tuple(corpora.Module(name=f"{i}.py", text=text.replace("f(", f"f{i}(")) for i in range(3))
    prompts = corpora.held_out_prompts(3, corpora.Corpus(modules=modules))
    assert [prompt.split("(")[0] for prompt in prompts] == ["def f0", "def f1", "def f2"]


def test_too_many_prompts_are_refused_with_the_most_there_are(library):
    with pytest.raises(ValueError, match=r"num_prompts 100000: the held-out modules give \d+ at most"):
        corpora.held_out_prompts(100_000, library[1])


def test_a_folder_without_sources_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no standard library source under"):
        corpora.standard_library(tmp_path)
