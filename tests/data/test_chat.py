import pytest

from specjax.data.chat import ChatTemplate

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b>"}]


def test_names_and_filters_of_templates():
    template = ChatTemplate(
        text="{{ bos_token }}{% for m in messages %}\n"
        "    {%- if m.role == 'system' %}{% continue %}{% endif %}\n"
        "{{ m | tojson }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
        bos_token="<s>",
        eos_token="</s>",
    )
    assert template.render(CHAT) == '<s>{"role": "user", "content": "Hi <b>"}</s>>'
    assert not template.render(CHAT, add_generation_prompt=False).endswith(">>")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{{ raise_exception('roles must alternate') }}", "chat template: roles must alternate"),
        ("a\n{% for %}", "chat template, line 2"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ nothing.at.all }}", "undefined"),
    ],
)
def test_what_a_template_may_not_do(text, told):
    with pytest.raises(ValueError, match=told):
        ChatTemplate(text=text).render(CHAT)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "at least one message"),
        ([{"role": "user"}], "chat message 0: 'content' must be a string"),
        ([{"role": "user", "content": None}], "chat message 0: 'content' must be a string"),
    ],
)
def test_messages_are_checked(messages, told):
    with pytest.raises(ValueError, match=told):
        ChatTemplate(text="x").render(messages)
