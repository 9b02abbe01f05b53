"""The command line in-process: overrides that work, and every refusal readable and before any work."""

from absl import flags
import pytest

from experiments import launch

QUICKSTART = "--config=configs/quickstart.py"


@pytest.fixture(autouse=True)
def in_repository_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def parse(*arguments):
    argv = ["sweep", *arguments]
    values = flags.FlagValues()
    holder = launch.define_config(flag_values=values, argv=argv)
    launch.parse_flags(argv, values)
    return launch.read_settings(holder)


@pytest.mark.parametrize(
    "override, field, value",
    [
        ("--config.gammas=3,7", "gammas", (3, 7)),
        ("--config.gammas=(3, 7)", "gammas", (3, 7)),
        ("--config.gammas=5", "gammas", (5,)),
        ("--config.temperatures=0,0.6", "temperatures", (0.0, 0.6)),
        ("--config.temperatures=1e-1", "temperatures", (0.1,)),
        ("--config.drafters=draft,./runs/my-draft", "drafters", ("draft", "./runs/my-draft")),
        ("--config.prompts=/some/where.jsonl", "prompts", "/some/where.jsonl"),
        ("--config.mesh=4,2", "mesh", (4, 2)),
        ("--config.stop_at_eos=false", "stop_at_eos", False),
        ("--config.top_p=1", "top_p", 1.0),
    ],
)
def test_overrides(override, field, value):
    assert getattr(parse(QUICKSTART, override), field) == value


def test_variants_and_repeated_lists():
    assert parse(QUICKSTART + ":smoke").num_prompts < parse(QUICKSTART).num_prompts
    assert parse(QUICKSTART, "--config.gammas=3", "--config.gammas=7").gammas == (3, 7)


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([QUICKSTART, "--config.gama=3"], "--config.gama: no such key; nearest is 'gammas'"),
        ([QUICKSTART, "--config.temprature", "1"], "nearest is 'temperatures'"),
        ([QUICKSTART, "--config.top_k=many"], "many"),
        ([QUICKSTART, "--cofig=x"], "cofig"),
        ([QUICKSTART + ":smok"], "nearest is 'smoke'"),
        (["--config=BAD"], "gama"),
        (["--config=TYPE"], "gammas"),
    ],
)
def test_refusals_are_short_and_end_with_status_2(arguments, told, capsys, tmp_path):
    """BAD is a config file that sets a misspelled key; TYPE one that sets a key to another type."""
    header = "from configs import base\ndef get_config():\n    config = base.sweep()\n"
    for name, line in {"BAD": "config.gama = (3,)", "TYPE": "config.gammas = 'x'"}.items():
        (tmp_path / f"{name}.py").write_text(f"{header}    {line}\n    return config\n")
        arguments = [each.replace(f"={name}", f"={tmp_path}/{name}.py") for each in arguments]
    with pytest.raises(SystemExit) as end:
        parse(*arguments)
    message = capsys.readouterr().err
    assert end.value.code == 2
    assert told in message
    assert len(message.strip().splitlines()) <= 2
    assert "Traceback" not in message


def test_a_missing_config_file_is_named():
    with pytest.raises(ValueError, match=r"No such file or directory: 'configs/quikstart\.py'"):
        parse("--config=configs/quikstart.py")


def test_keys_of_a_config_file_that_builds_its_own_dict_are_checked(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "from ml_collections import config_dict\n"
        "def get_config():\n    return config_dict.ConfigDict({'gama': (3,)})\n"
    )
    with pytest.raises(ValueError, match=r"config\.gama: no such key; nearest is 'gammas'"):
        parse(f"--config={path}")
