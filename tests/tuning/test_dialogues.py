# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a conversation are learned, against reasoning in pieces."""

import pathlib

import numpy as np
import pytest

from gpt_jax.core.files.document import Document
from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokenizers.special import BREAK
from gpt_jax.decoding import chat
from gpt_jax.decoding.chat import TEMPLATES, ChatTemplate
from gpt_jax.hf_tokenizers import special_files
from gpt_jax.tuning import dialogues, records
from gpt_jax.tuning.dialogues import Encoder
from gpt_jax.tuning.records import TextExample

GOLDEN = pathlib.Path(__file__).parents[1] / 'hf_tokenizers/golden'
CHAT = [
  {'role': 'system', 'content': 'Be brief.'},
  {'role': 'user', 'content': 'Wie heißt <|im_end|> du?\n'},
  {'role': 'assistant', 'content': 'Ich bin 你好 \U0001f600 </s>'},
  {'role': 'user', 'content': 'And <|endoftext|> <s>?'},
  {'role': 'assistant', 'content': 'é a  b'},
]
TEXT = ' '.join(m['content'] for m in CHAT) * 3


def imported(name):
  call = f'hf_tokenizer({str(GOLDEN / name / "tokenizer.json")!r})'
  return special_files.tokenizer(call, str(GOLDEN / name))


def trained(call):
  return tokenizer.build(call, [Document('a', TEXT)])


# Of each kind of tokenizer one, and what ends an answer.
MADE = {
  'byte-level BPE': (lambda: imported('smollm2'), '<|im_end|>'),
  'byte-level BPE, a file of its own': (lambda: imported('llama3'), '<|eot_id|>'),
  'BPE with spaces before words': (lambda: imported('llama'), '</s>'),
  'trained byte-level BPE': (lambda: trained('byte_bpe(290)'), '</s>'),
  'bytes': (lambda: trained('bytes'), '<|endoftext|>'),
  'sentencepiece': (
    lambda: trained("sentencepiece(300, model='bpe', character_coverage=1)"),
    '</s>',
  ),
}


def encoder_of(made, template):
  return Encoder(made, lambda: chat.choose(template, made, ''))


@pytest.fixture(params=MADE, scope='module')
def kind(request):
  make, end = MADE[request.param]
  return make(), end


@pytest.mark.parametrize('name', [n for n in TEMPLATES if n != 'chatml'])
def test_the_answers_are_learned_and_nothing_else(kind, name):
  """The learned tokens are those of each answer, with the token that ends it.

  As pieces: between the names of special tokens a text is encoded alone.
  """
  made, end = kind
  found = encoder_of(made, name).encode(TextExample('a:1', None, CHAT), 'assistant')
  runs = np.flatnonzero(np.diff([False, *found.learned, False])).reshape(-1, 2)
  assert len(runs) == 2
  names = made.special.names
  for (start, stop), message in zip(runs, CHAT[2::2], strict=True):
    ids = found.ids[start:stop]
    assert ids[-1] == names[end]
    assert message['content'] in made.decode(ids[:-1])
    assert len(made.decode(ids[:-1])) <= len(message['content']) + 2
    # A name of a special token in a message stays text.
    assert not {*ids[:-1].tolist()} & {*names.values()}


@pytest.mark.parametrize(
  'name, says',
  [
    ('smollm2', "message['content'] + '<|im_end|>'"),
    ('llama3', "message['content'] | trim + '<|eot_id|>'"),
  ],
)
def test_marks_give_the_spans_of_prefixes(name, says):
  """With `{% generation %}` the same tokens as with rendered prefixes."""
  made, own = imported(name), ChatTemplate.load(str(GOLDEN / name))
  assert own is not None
  example = TextExample('a:1', None, CHAT)
  found = Encoder(made, lambda: own).encode(example, 'assistant')
  np.testing.assert_array_equal(found.ids, own.ids(made, CHAT, False))
  marked = (
    "{%- if message['role'] == 'assistant' %}{% generation %}"
    f'{{{{ {says} }}}}{{% endgeneration %}}{{%- else %}}{{{{ {says} }}}}'
    '{%- endif %}'
  )
  if name == 'smollm2':  # in the middle of an expression
    source = own.source.replace(f' + {says} + ', f' }}}}{marked}{{{{ ')
  else:
    source = own.source.replace(f'{{{{- {says} }}}}', marked)
  assert source != own.source
  template = ChatTemplate(source, {'bos_token': '<|begin_of_text|>'})
  again = Encoder(made, lambda: template).encode(example, 'assistant')
  np.testing.assert_array_equal(again.ids, found.ids)
  np.testing.assert_array_equal(again.learned, found.learned)


# As in models that call tools: calls are in JSON, and results that follow each
# other make one turn of the user.
TOOLS = r"""
{%- for m in messages %}
  {%- if m.role == 'tool' %}
    {%- if loop.previtem.role != 'tool' %}{{- '<user>' }}{% endif %}
    {{- '<result>' + m.content }}
    {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '</s>' }}{% endif %}
  {%- else %}
    {{- '<' + m.role + '>' + m.content }}
    {%- for call in m.tool_calls or [] %}
      {{- '<call>' + call.function | tojson }}
    {%- endfor %}
    {{- '</s>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{% endif %}
"""
ASKED = {'role': 'user', 'content': 'Hot?'}
CALLING = {
  'role': 'assistant',
  'content': None,
  'tool_calls': [
    {'type': 'function', 'function': {'name': n, 'arguments': {'city': 'Ulm'}}}
    for n in ('heat', 'wind')
  ],
}
RESULTS = [{'role': 'tool', 'content': x} for x in ('"31"', 'low </s>')]
ANSWER = {'role': 'assistant', 'content': 'Yes.'}


def test_what_tools_return_is_read_and_not_learned():
  made = trained('byte_bpe(290)')
  encoder = Encoder(made, lambda: ChatTemplate(TOOLS, {}))
  messages = [ASKED, CALLING, *RESULTS, ANSWER]
  example = records.example(Record('a:1', {'messages': messages}))
  found = encoder.encode(example, 'assistant')
  # As text: without the four tokens that end a turn.
  pieces = [
    ('<user>Hot?<assistant>', False),
    ('<call>{"name": "heat", "arguments": {"city": "Ulm"}}', True),
    ('<call>{"name": "wind", "arguments": {"city": "Ulm"}}', True),
    ('<user><result>"31"<result>low </s><assistant>', False),
    ('Yes.', True),
  ]
  for learned in (True, False):
    ids = found.ids[found.learned == learned]
    text = ''.join(text for text, x in pieces if x == learned)
    assert made.decode(ids) == text
    assert np.count_nonzero(ids == made.special.names['</s>']) == 2
  prompt = encoder.prompt(example.completion[:-1])
  np.testing.assert_array_equal(found.ids[: len(prompt)], prompt)
  assert made.decode(found.ids[len(prompt) :]) == 'Yes.'


def test_templates_by_name_write_what_tools_return(kind):
  """Where a template writes any role; each result is a turn of its own."""
  made, end = kind
  calling = {'role': 'assistant', 'content': 'heat(Ulm)'}
  messages = [ASKED, calling, *RESULTS, ANSWER]
  found = encoder_of(made, 'zephyr').encode(TextExample('a:1', None, messages), 'assistant')
  runs = np.flatnonzero(np.diff([False, *found.learned, False])).reshape(-1, 2)
  said = [made.decode(found.ids[slice(*run)]) for run in runs]
  assert len(said) == 2
  for text, message in zip(said, (calling, ANSWER), strict=True):
    assert message['content'] in text
  others = made.decode(found.ids[~found.learned])
  assert all(x['content'] in others for x in RESULTS)
  assert np.count_nonzero(found.ids == made.special.names[end]) == 5


def test_no_token_stands_twice_before_a_conversation():
  """The template writes the start, and the tokenizer adds none."""
  made = imported('llama3')
  template = ChatTemplate.load(str(GOLDEN / 'llama3'))
  assert template is not None
  found = Encoder(made, lambda: template).encode(TextExample('a:1', None, CHAT), 'assistant')
  start = made.special.names['<|begin_of_text|>']
  assert np.count_nonzero(found.ids == start) == 1
  text = Encoder(made, lambda: template).encode(
    TextExample('a:1', 'a prompt', ' and more'), 'completion'
  )
  assert text.ids.tolist().count(start) == len(made.special.prompt_start)


def test_completions_of_texts_and_messages(kind):
  made, _ = kind
  encoder = encoder_of(made, 'vicuna')
  prompt, completion = 'naïve question:', ' an answer 你'
  found = encoder.encode(TextExample('a:1', prompt, completion), 'assistant')
  start = made.special.prompt_start
  assert found.ids.tolist() == [
    *start, *made.encode(prompt + completion), made.eos_id
  ]  # fmt: skip
  said = made.decode(found.ids[found.learned])
  assert completion.strip() in said and 'question' not in said
  assert found.learned[-1] and not found.learned[0]
  every = encoder.encode(TextExample('a:1', prompt, completion), 'all')
  assert every.learned[1:].all() and not every.learned[0]
  # The first answer belongs to the prompt; 'completion' takes the turn between.
  whole = encoder.encode(TextExample('a:1', None, CHAT), 'assistant')
  for count, loss_on in ((4, 'assistant'), (4, 'completion')):
    pair = TextExample('a:1', CHAT[:count], CHAT[count:])
    found = encoder.encode(pair, loss_on)
    np.testing.assert_array_equal(found.ids, whole.ids)
    last = np.flatnonzero(np.diff([False, *whole.learned, False]))[-2]
    expected = whole.learned & (np.arange(len(whole.ids)) >= last)
    np.testing.assert_array_equal(found.learned, expected)


def test_a_prompt_is_the_beginning_of_what_is_learned(kind):
  made, _ = kind
  encoder = encoder_of(made, 'zephyr')
  found = encoder.encode(TextExample('a:1', None, CHAT[:3]), 'assistant')
  prompt = encoder.prompt(CHAT[:2])
  first = int(np.argmax(found.learned))
  np.testing.assert_array_equal(found.ids[:first], prompt)


def test_templates_that_change_the_past_are_refused():
  made = tokenizer.build('bytes', [])
  last = "{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}"
  encoder = Encoder(made, lambda: ChatTemplate(last, {}))
  with pytest.raises(UsageError, match=r'a:7: .*changes earlier messages'):
    encoder.encode(TextExample('a:7', None, CHAT), 'assistant')


def test_offsets_of_special_tokens(kind):
  """Each token comes from its own characters; guards come from none."""
  made, end = kind
  text = f'{end}x{BREAK}y 你{end}\n'
  ids, offsets = made.encode_special(text), made.offsets_special(text)
  assert offsets.shape == (len(ids), 2) and offsets.dtype == np.int32
  assert (np.diff(offsets[:, 0]) >= 0).all()
  whole = [text[a:b] for a, b in offsets[ids == made.special.names[end]]]
  assert whole == [end, end]
  covered = {i for a, b in offsets.tolist() for i in range(a, b)}
  assert {text[i] for i in range(len(text)) if i not in covered} <= {BREAK}


START = '{% for m in messages %}{{ m.role + ": " }}'
MARKED = '{% generation %}{{ m.content }}{% endgeneration %}'


@pytest.mark.parametrize(
  ('says', 'loss_on', 'endless'),
  [
    ('{{ m.content + eos_token }}', 'assistant', 0),
    ('{{ m.content + eos_token }}\n\n', 'assistant', 0),
    ('{{ m.content + eos_token }}\n\n', 'all', 0),
    ('{{ m.content }}{{ "" if loop.last else eos_token }}', 'assistant', 1),
    ('{{ m.content + "\n" }}', 'assistant', 1),
    ('{{ eos_token + m.content }}', 'all', 1),
    (f'{MARKED}{{{{ eos_token }}}}', 'assistant', 1),
    (f'{MARKED}{{{{ eos_token }}}}', 'all', 0),
    (MARKED.replace('content', 'content + eos_token + " "'), 'assistant', 0),
  ],
)
def test_turns_that_are_not_ended_are_told(says, loss_on, endless, caplog):
  """Of a conversation; a text is ended by us."""
  made = tokenizer.build('bytes', [])
  (name,) = [n for n, i in made.special.names.items() if i == made.eos_id]
  source = f'{START}{says}{{% endfor %}}'
  encoder = Encoder(made, lambda: ChatTemplate(source, {'eos_token': name}))
  examples = [TextExample('a:1', None, CHAT), TextExample('a:2', 'a', 'b')]
  encoded = [encoder.encode(x, loss_on) for x in examples]
  found = dialogues.ends('a', examples, encoded, made)
  assert found == (set() if endless else {made.eos_id})
  said = 'a: 1 of 1 conversations have no special token after their last answer'
  assert (said in caplog.text) == bool(endless)
