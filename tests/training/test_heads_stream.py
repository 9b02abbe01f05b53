"""Heads are trained on exactly the pairs (hidden state, label) that responses hold."""

import itertools
import json

from etils import epath
import numpy as np
import pytest
from tiny_heads import FROZEN, HEADS, PARAMS, TARGET, WEIGHTS, H, V, batch_of, hand_made

from specjax.training.heads import HeadsLoss
from specjax.training.heads_stream import CachedFeatures, ComputedFeatures, make_stream, read_responses
from specjax.trees.label_ranks import NONE


def test_pairs_are_exactly_those_within_a_response():
    lengths = (4, 1, 2, 5)
    stream, ends = hand_made(*lengths), np.cumsum(lengths)
    features, labels = stream.window(np.array([0, 6]), 6, H)
    found = {
        (int(features[b, w, 0]), head, int(labels[b, w, head]))
        for b, w, head in itertools.product(range(2), range(6), range(H))
        if labels[b, w, head] != NONE
    }
    expected = set()
    for length, end in zip(lengths, ends):
        for t, head in itertools.product(range(length), range(H)):
            if t + 1 + head < length:  # head i at the feature that gave token t: token t + 1 + i
                place = end - length + t
                expected.add((place, head, (place + 1 + head) % V))
    assert found == expected
    assert stream.window(np.array([11]), 6, H)[1].max() == NONE  # past the end of the stream


def test_features_computed_anew_give_the_loss_of_those_kept(files, stream, network):
    responses, features = read_responses(files, V)
    computed = make_stream(responses, ComputedFeatures(target=TARGET, params=PARAMS, responses=responses))
    starts = np.array([0, 5, 17])
    kept, anew = batch_of(stream, starts, 8), batch_of(computed, starts, 8)
    np.testing.assert_array_equal(kept["labels"], anew["labels"])
    np.testing.assert_allclose(kept["features"].astype("f"), anew["features"].astype("f"), atol=2e-2)
    loss = HeadsLoss(heads=HEADS, weights=WEIGHTS, distillation=0.5)
    np.testing.assert_allclose(loss(network, FROZEN, kept), loss(network, FROZEN, anew), rtol=1e-2)
    shifted = make_stream(responses, CachedFeatures(features=np.roll(features, 1, axis=0)))  # control
    assert abs(loss(network, FROZEN, batch_of(shifted, starts, 8)) - loss(network, FROZEN, kept)) > 0.05


def test_responses_of_another_tokenizer_and_missing_features(files, tmp_path):
    with pytest.raises(ValueError, match=r"id \d, but the target's are 0..3; .*another tokenizer"):
        read_responses(files, 4)
    with pytest.raises(ValueError, match="no response at temperatures"):
        read_responses(files, V, temperatures=(0.3,))
    greedy, _ = read_responses(files, V, temperatures=(0.0,))
    assert {response.temperature for response in greedy} == {0.0}
    lines = files[0].read_text().splitlines()
    broken = epath.Path(tmp_path / files[0].name)
    broken.write_text("".join(line + "\n" for line in lines[:-1]))
    source = files[0].parent / files[0].name.replace("responses-", "features-").replace(
        ".jsonl", ".safetensors"
    )
    (broken.parent / source.name).write_bytes(source.read_bytes())
    with pytest.raises(ValueError, match="features beside it"):
        read_responses([broken], V)
    for line, told in (
        ('{"id": "a", "te', "line 1 is not JSON"),
        ('{"id": "a"}', "lacks temperature"),
    ):
        broken.write_text(line + "\n")
        with pytest.raises(ValueError, match=told):
            read_responses([broken], V)
    (broken.parent / source.name).unlink()
    broken.write_text(lines[0] + "\n")
    with pytest.raises(ValueError, match=r"no file .*features-\d+\.safetensors"):
        read_responses([broken], V)
    assert len(json.loads(lines[0])["response_tokens"]) > 0
