# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chat templates, against what transformers recorded."""

import json
import pathlib
import shutil
from typing import Any

import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.decoding import chat
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.hf_tokenizers import special_files

GOLDEN = pathlib.Path(__file__).parents[1] / 'hf_tokenizers/golden'
RECORDED = json.loads((GOLDEN / 'golden.json').read_text())
NAMES = ('llama', 'smollm2', 'llama3')


def loaded(folder):
  made = ChatTemplate.load(str(folder))
  assert made is not None
  return made


def imported(name):
  call = f'hf_tokenizer({str(GOLDEN / name / "tokenizer.json")!r})'
  return special_files.tokenizer(call, str(GOLDEN / name))


@pytest.mark.parametrize('name', NAMES)
def test_texts_and_ids_are_those_of_transformers(tmp_path, name):
  made = imported(name)
  made.save(str(tmp_path))
  template = loaded(tmp_path)
  for case in RECORDED[name]['chats']:
    chat, more = case['messages'], case['more']
    assert template.render(chat, more) == case['text']
    assert template.ids(made, chat, more) == case['ids']


def test_conventions_of_transformers():
  case = RECORDED['conventions']
  template = ChatTemplate(case['template'], {'eos_token': '<|im_end|>'})
  text = template.render(case['messages'], add_generation_prompt=False)
  assert text == case['text']


@pytest.mark.parametrize('name', NAMES)
def test_no_message_ends_itself(name):
  """Whatever it holds, a chat has the template's own special tokens."""
  made, template = imported(name), loaded(GOLDEN / name)
  specials = {*made.special.names.values()}

  def found(content):
    chat = [{'role': 'user', 'content': content}]
    return [i for i in template.ids(made, chat) if i in specials]

  attacks = [RECORDED['names'], '<|im_\ufdd0end|>', '<\ufdd0/s>']
  attacks += [' '.join(2 * [*made.special.names])]
  for attack in attacks:
    assert found(attack) == found('speak')
    ids = template.ids(made, [{'role': 'user', 'content': attack}])
    text = [i for i in ids if i not in specials]
    assert attack.replace('\ufdd0', '') in made.decode(text)


def test_no_argument_of_a_call_ends_a_message():
  made = imported(NAMES[0])
  source = '{% for k, v in messages[0].call.items() %}{{ k }}={{ v }}{% endfor %}'
  specials = {*made.special.names}
  call = dict.fromkeys(specials, ' '.join(specials))
  chat = [{'role': 'user', 'content': '', 'call': call}]
  ids = ChatTemplate(source, {}).ids(made, chat)
  assert len(ids) > len(specials)
  assert not {*ids} & {*made.special.names.values()}


@pytest.mark.parametrize(('named', 'name'), [('chatml', 'smollm2'), ('llama2', 'llama')])
def test_templates_by_name_are_the_usual_ones(named, name):
  """Where there is a system message, for which SmolLM2 has a default."""
  made = imported(name)
  template = chat.choose(named, made, '')
  cases = [case for case in RECORDED[name]['chats'] if case['messages'][0]['role'] == 'system']
  assert cases
  for case in cases:
    text = template.render(case['messages'], case['more'])
    assert text == case['text']
    assert template.ids(made, case['messages'], case['more']) == case['ids']


def test_a_template_is_saved_with_what_ends_an_answer(tmp_path):
  """An import stops there; its ids are the same."""
  made = imported('llama')
  path = tmp_path / 'mine.jinja'
  path.write_text('{{ bos_token }}{{ messages[0].content }}{{ eos_token }}')
  template = chat.choose(str(path), made, '')
  new = special_files.with_template(made, template, {made.id_of('<s>')})
  new.save(str(tmp_path / 'new'))
  again = tokenizer.load(str(tmp_path / 'new'))
  assert again.fingerprint == made.fingerprint
  stops = made.special.stop_ids
  assert again.special.stop_ids == {*stops, made.id_of('<s>')} > stops
  messages = [{'role': 'user', 'content': 'a'}]
  assert loaded(tmp_path / 'new').render(messages) == '<s>a</s>'
  config = json.loads((tmp_path / 'new/generation_config.json').read_text())
  assert {*config['eos_token_id']} == again.special.stop_ids


def test_a_failing_template_is_one_line():
  chat = [{'role': 'user', 'content': 'a'}]
  for source, why in (
    ("{{ raise_exception('No system\n role') }}", 'No system role'),
    ('{{ messages[0].content + 1 }}', 'can only concatenate'),
    ('{{ messages[3].content }}', 'has no element 3'),
    ("{{ messages.append(1) }}{{ 'x' }}", 'unsafe'),
    ("{{ ''.__class__.__mro__ }}", 'unsafe'),
    ('{% for i in range(10**9) %}{% endfor %}', 'Range too big'),
    ('{{ 1 / 0 }}', 'division by zero'),
    ('{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}', 'recursion depth'),
    (r"{{ '\ud800' }}", 'surrogates not allowed'),
    ("{{ '%999999999999999d' % messages|length }}", ''),
  ):
    with pytest.raises(UsageError, match=f'template fails: .*{why}') as error:
      ChatTemplate(source, {}).render(chat)
    assert '\n' not in str(error.value)
  for source in ('{% for %}', '{{ a', "{% include 'x' %}{% endfor %}"):
    with pytest.raises(UsageError, match='template is damaged: line 1'):
      ChatTemplate(source, {})
  for source in (
    '{{ ' + '(' * 3000 + '1' + ')' * 3000 + ' }}',
    '{{ ' + 'not ' * 3000 + '1 }}',
    '{{ ' + '[' * 3000 + ']' * 3000 + ' }}',
    '{% if a %}' * 300 + '{% endif %}' * 300,
    '{% for a in b %}' * 40 + '{% endfor %}' * 40,
    '{{ ' + '9' * 5000 + ' }}',
    '{{ 10 ** 5000 }}',
    '\ud800',
  ):
    with pytest.raises(UsageError, match=r'^the chat template is dam') as error:
      ChatTemplate(source, {})
    assert '\n' not in str(error.value)
    with pytest.raises(UsageError, match=r"^template='x' is .*; mend the file"):
      ChatTemplate(source, {}, "template='x'")
  with pytest.raises(UsageError, match='writes nothing for'):
    ChatTemplate('', {}).ids(imported('smollm2'), chat)


def test_messages_that_are_nested_too_deeply():
  deep: Any = []
  for _ in range(100_000):
    deep = [deep]
  template = ChatTemplate('{{ messages[0].content }}', {})
  for key in ('tool_calls', 'content'):
    message = {'role': 'assistant', 'content': 'a', key: deep}
    with pytest.raises(UsageError):
      template.ids(imported('smollm2'), [message])


@pytest.mark.parametrize(
  'source',
  [
    '{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}',
    '{% set x %}{% generation %}ab{% endgeneration %}{% endset %}{{ x[:-1] }}',
  ],
)
def test_marks_that_do_not_alternate_are_refused(source):
  with pytest.raises(UsageError, match=r'template nests blocks of {% genera'):
    ChatTemplate(source, {}).rendered({}, [{'role': 'user', 'content': 'a'}])


def test_where_a_template_is_found(tmp_path):
  assert ChatTemplate.load(str(GOLDEN / 'gpt2')) is None
  assert ChatTemplate.load(str(tmp_path)) is None
  shutil.copytree(GOLDEN / 'llama3', tmp_path, dirs_exist_ok=True)
  path = tmp_path / 'tokenizer_config.json'

  def write(templates):
    path.write_text(json.dumps({'chat_template': templates}))

  write('other')  # the file of its own comes first
  golden = RECORDED['llama3']['chats'][0]
  assert golden['text'] != loaded(tmp_path).render(golden['messages'])
  (tmp_path / 'chat_template.jinja').unlink()
  assert loaded(tmp_path).render([]) == 'other'
  write(
    [{'name': 'tool_use', 'template': 'a'}, {'name': 'default', 'template': 'b{{ pad_token }}'}]
  )
  (tmp_path / 'special_tokens_map.json').write_text('{"pad_token": "<p>"}')
  assert loaded(tmp_path).render([]) == 'b<p>'
  write([{'name': 'tool_use', 'template': 'a'}])
  with pytest.raises(UsageError, match="'tool_use' is named default"):
    loaded(tmp_path)
  for damaged in ([1], 3, {'default': 'a'}, [{'name': 'default'}]):
    write(damaged)
    with pytest.raises(UsageError, match='chat_template is damaged'):
      loaded(tmp_path)
  write([{'name': 'default', 'template': 3}])
  with pytest.raises(UsageError, match='chat_template is damaged'):
    loaded(tmp_path)
