import pytest

from specjax.data.prompts import Prompt, common_category, content_hash, read_jsonl


def write(tmp_path, text):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_prompts_and_first_turns_in_file_order(tmp_path):
    lines = [
        '{"prompt": "one", "id": "a", "category": "code"}',
        "",
        '{"turns": ["two", "more"], "id": 7}',
        '{"prompt": "three"}',
    ]
    path = write(tmp_path, "\n".join(lines))
    assert read_jsonl(path) == (
        Prompt(id="a", text="one", category="code"),
        Prompt(id="7", text="two"),
        Prompt(id="3", text="three"),
    )


@pytest.mark.parametrize(
    "text, told",
    [
        ('{"prompt": "x"}\n{"prompt": \n', "line 2: not JSON"),
        ('{"prompt": "x"}\n\n["x"]\n', "line 3: expected an object"),
        ('{"prmpt": "x"}\n', "line 1: no 'prompt' or 'turns' (fields: prmpt)"),
        ('{"prompt": ""}\n', "line 1: the prompt is empty"),
        ('{"prompt": 3}\n', "line 1: the prompt must be a string, got int"),
        ('{"turns": []}\n', "line 1: 'turns' must be a list"),
        ('{"turns": "x"}\n', "line 1: 'turns' must be a list"),
        ("\n \n", "holds no prompt"),
        ("", "holds no prompt"),
        (b'{"prompt": "\xff"}\n', "is not UTF-8"),
        ('{"prompt": "x\\ud800"}\n', "line 1: '\\ud800' at character 1 is half a character"),
        ("[" * 100_000, "line 1: nested too deeply"),
    ],
)
def test_malformed_files_are_refused_by_line(tmp_path, text, told):
    with pytest.raises(ValueError) as refusal:
        read_jsonl(write(tmp_path, text))
    assert told in str(refusal.value)


def test_a_byte_order_mark_is_skipped(tmp_path):
    (prompt,) = read_jsonl(write(tmp_path, b'\xef\xbb\xbf{"prompt": "x"}\n'))
    assert prompt.text == "x"


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*nowhere\.jsonl"):
        read_jsonl(str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(ValueError, match="is a folder"):
        read_jsonl(str(tmp_path))


def test_the_hash_is_of_texts_and_their_order():
    a, b = Prompt(id="1", text="a"), Prompt(id="2", text="b")
    assert content_hash([a, b]) == content_hash([Prompt(id="9", text="a", category="x"), b])
    assert content_hash([a, b]) != content_hash([b, a])
    assert content_hash([a, b]) != content_hash([Prompt(id="1", text="ab")])


def test_category():
    assert common_category([Prompt(id="1", text="a", category="x")] * 2) == "x"
