import pytest

from specjax.training.checkpoints import MetricsLog, claim_workdir

SETTINGS = {"seed": 0, "stages": ({"steps": 3}, {"steps": 4}), "model": {"hidden_size": 8}}


def test_the_same_settings_may_return(tmp_path):
    claim_workdir(tmp_path / "run", SETTINGS)
    claim_workdir(tmp_path / "run", SETTINGS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"hidden_size": 16}}, "model.hidden_size: 8 in the workdir, 16 now"),
        ({"stages": ({"steps": 3}, {"steps": 5})}, r"stages.1.steps: 4 in the workdir, 5 now"),
        ({"clip": 1.0}, "clip: None in the workdir, 1.0 now"),
    ],
)
def test_other_settings_are_refused_with_both_values(tmp_path, changes, message):
    claim_workdir(tmp_path, SETTINGS)
    with pytest.raises(ValueError, match=message):
        claim_workdir(tmp_path, SETTINGS | changes)


def test_log_reopened_at_a_step_forgets_what_came_after(tmp_path):
    log = MetricsLog(tmp_path, 0)
    for step in (1, 2, 3):
        log.write({"step": step})
    log.close()
    log = MetricsLog(tmp_path, 2)
    log.write({"step": 3, "again": True})
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines == ['{"step": 1}', '{"step": 2}', '{"step": 3, "again": true}']


def test_a_kill_while_the_log_is_reopened_loses_no_line(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path, 0)
    log.write({"step": 1})
    log.close()
    before = (tmp_path / "metrics.jsonl").read_text()

    def killed(self, target):
        assert self.read_text() == before
        raise KeyboardInterrupt

    monkeypatch.setattr(type(log.path), "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        MetricsLog(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").read_text() == before
