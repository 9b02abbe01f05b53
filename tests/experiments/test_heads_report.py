"""The report of a training run of heads, finished or not."""

import json

import pytest

from experiments.heads_report_run import read_metrics, write


def lines():
    yield {"step": 1, "loss": 4.0}
    for step, top in ((2, 0.3), (4, 0.4)):
        accuracies = {f"head{h}_top{k}": top / h + 0.01 * k for h in (1, 2) for k in range(1, 11)}
        tau = {"held_out_predicted_tau_chain": 1 + top, "held_out_real_tau_chain": 1 + 0.9 * top}
        yield {"step": step, "held_out_top1_head1": top, **accuracies, **tau}


def test_both_tables_show_the_last_evaluation_and_every_decode(tmp_path):
    torn = '{"step": 5, "lo'
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines()) + torn)
    text = write(tmp_path)
    assert "# Heads after 4 steps" in text
    assert "| 1 | 0.410 | 0.420 | 0.430 | 0.440 | 0.450 | 0.560 | 0.594 | 0.605 |" in text
    assert "| chain | 2 | 1.30 | 1.27 | 1.02 |" in text and "| chain | 4 | 1.40 | 1.36 | 1.03 |" in text
    assert (tmp_path / "heads.md").read_text() == text
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_an_evaluation_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"no .*metrics.jsonl; give the workdir of a run"):
        read_metrics(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 4.0}\n')
    with pytest.raises(ValueError, match="no evaluation among 1 steps"):
        read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1, 2]\n", "line 1 holds a list, not an object of figures"),
        ("null\n", "line 1 holds a NoneType"),
        ('{"step": 1}\n[\n', "line 2 is not JSON"),
        ("{}\n", "line 1: step is None, not the number of a step"),
        ('{"step": "one"}\n', "line 1: step is 'one'"),
        ('{"step": 1, "held_out_predicted_tau_chain": "1.4"}\n', "held_out_predicted_tau_chain is '1.4'"),
        ("\xff\n", "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_told_by_its_line(text, told, tmp_path):
    (path := tmp_path / "metrics.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=told) as caught:
        write(tmp_path)
    message = str(caught.value)
    assert str(path) in message and message.endswith("give the workdir of a run of experiments.train_heads")
    assert len(message.splitlines()) == 1


def test_the_metrics_of_another_training_hold_no_evaluation_of_heads(tmp_path):
    line = {"step": 1, "held_out_predicted_tau_chain": 1.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match="no evaluation among 1 steps"):
        write(tmp_path)


def test_a_report_that_cannot_be_written(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines()))
    (tmp_path / "heads.png").mkdir()
    with pytest.raises(ValueError, match=r"--workdir: .* cannot be written \(Is a directory\)"):
        write(tmp_path)
