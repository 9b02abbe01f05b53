import numpy as np
import pytest

from specjax.data.corpora import Corpus, Module
from specjax.data.tokenizers import train_tokenizer
from specjax.training.windows import Windows, evaluation_batches, token_stream, training_batches

STREAM = np.arange(101, dtype=np.int32)
SHAPE = {"context": 8, "batch_size": 3, "num_steps": 11, "seed": 5}


def rows_of(batches, steps):
    return np.concatenate([batches[step] for step in steps])


def test_stream_marks_where_each_module_begins():
    modules = (Module(name="a", text="x = 1\n"), Module(name="b", text="y\n"))
    tokenizer = train_tokenizer([module.text for module in modules], vocab_size=257)
    stream = token_stream(Corpus(modules=modules), tokenizer)
    assert stream.dtype == np.int32 and list(stream).count(0) == 2 and stream[0] == 0
    assert tokenizer.decode(list(stream)) == "x = 1\ny\n"


@pytest.mark.parametrize("offset", [0, 3])
def test_every_label_appears_in_exactly_one_window(offset):
    windows = Windows(stream=STREAM, width=9, offset=offset)
    labels = np.concatenate([windows[index][1:] for index in range(len(windows))])
    np.testing.assert_array_equal(labels, STREAM[offset + 1 : offset + 1 + len(labels)])
    assert len(STREAM) - len(labels) <= offset + 8


def test_batches_depend_on_seed_and_step_alone():
    batches, again = training_batches(STREAM, **SHAPE), training_batches(STREAM, **SHAPE)
    order = [7, 2, 10, 0]
    for step in order:
        assert batches[step].shape == (3, 9)
        np.testing.assert_array_equal(batches[step], again[step])
    other = training_batches(STREAM, **(SHAPE | {"seed": 6}))
    assert any((batches[step] != other[step]).any() for step in order)


def test_windows_are_pieces_of_the_stream_and_passes_differ():
    starts = rows_of(training_batches(STREAM, **SHAPE), range(11))[:, 0]
    rows = rows_of(training_batches(STREAM, **SHAPE), range(11))
    np.testing.assert_array_equal(np.diff(rows, axis=1), 1)
    first_pass = starts[:11]  # (101 - 1) / 8 windows at least, whatever the offset
    assert len(set(first_pass)) == 11
    assert len({start % 8 for start in starts}) > 1


def test_rows_join_every_pass():
    rows = np.full((4, 9), 999, np.int32)
    batches = training_batches(STREAM, **(SHAPE | {"num_steps": 10}), rows=rows)
    seen = (rows_of(batches, range(10))[:, 0] == 999).sum()
    assert seen in (4, 8)
    with pytest.raises(ValueError, match="rows have 9 tokens; a context of 6 needs 7"):
        training_batches(STREAM, **(SHAPE | {"context": 6}), rows=rows)


def test_a_stream_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match="no window of 201 tokens in a stream of 101"):
        training_batches(STREAM, **(SHAPE | {"context": 200}))
    with pytest.raises(ValueError, match="20 windows of 9 tokens asked, 12 in the stream"):
        evaluation_batches(STREAM, context=8, batch_size=4, num_batches=5)


def test_evaluation_windows_spread_over_the_stream():
    starts = evaluation_batches(STREAM, context=8, batch_size=2, num_batches=2)[..., 0].ravel()
    assert starts[0] == 0 and starts[-1] == 88 and len(set(starts)) == 4
