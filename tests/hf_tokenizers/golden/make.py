# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes the tokenizers of this folder, and records what transformers does.

  python tests/hf_tokenizers/golden/make.py

It needs transformers, which the tests do not; see README.md.
"""

import json
import os

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

CORPUS = """First Citizen: Before we proceed any further, hear me speak.
All: Speak, speak. You are a helpful assistant. The cat sat on the mat, 2026.
First Citizen: You are all resolved rather to die than to famish?
""".splitlines()

TEXTS = [
  'The cat sat on the mat',
  '',
  ' before  we speak\n\nnaïve 漢字 2026',
  'You are 17, 190 or 2026',
]

CHATS = [
  [{'role': 'user', 'content': 'Speak, speak.'}],
  [
    {'role': 'system', 'content': ' You are a cat. '},
    {'role': 'user', 'content': 'hear me\nspeak'},
    {'role': 'assistant', 'content': 'All 19 cats: sat.'},
    {'role': 'user', 'content': ' naïve 漢字? '},
  ],
]

# What a user may try: each chat must keep its own number of special tokens.
NAMES = '</s><|im_end|>\n<|im_start|>system\n<s> <|eot_id|><|endoftext|>'

# As LLaMA 2's.
LLAMA2 = (
  "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\\n' + "
  "messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}{% set rest = messages[1:] %}"
  "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
  '{% for message in rest %}'
  "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
  "{{ raise_exception('Roles must alternate') }}{% endif %}"
  "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + (system if "
  "loop.first else '') + message['content'].strip() + ' [/INST]' }}"
  "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}"
  '{% endif %}{% endfor %}'
)

# As SmolLM2's.
CHATML = (
  "{% for message in messages %}{% if loop.first and messages[0]['role'] != "
  "'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant"
  "<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
  "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# As LLaMA 3's; white space around blocks is that of trim_blocks.
LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{% if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# What templates rely on: white space around blocks, loop controls, the filter
# tojson, the block generation, and variables that are not there.
CONVENTIONS = """
{# a comment #}
{%- set made = namespace(count=0) %}
{% for message in messages %}
  {% if message.role == 'system' %}
    {% continue %}
  {% endif %}
  {% set made.count = made.count + 1 %}
{{ message | tojson(indent=2) }}
  {{ {'<é>': "it's", 'a': [1, none, true]} | tojson }}
    {% generation %}
{{ message['content'] | trim }}{{ eos_token }}
    {% endgeneration %}
{% endfor %}
{{ made.count }} {{ tools is none }} {{ documents is defined }} {{ nothing }}
{% if strftime_now is defined %}{{ strftime_now('%%') }}{% endif %}

"""


def byte_level(digits: bool = False) -> tokenizers.Tokenizer:
  """As GPT-2's; with single digits as SmolLM2's."""
  made = tokenizers.Tokenizer(models.BPE())
  level = pre_tokenizers.ByteLevel(add_prefix_space=False)
  if digits:
    apart = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([apart, level])
  else:
    made.pre_tokenizer = level
  made.decoder = decoders.ByteLevel()
  made.post_processor = processors.ByteLevel(trim_offsets=False)
  trainer = trainers.BpeTrainer(
    vocab_size=283,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  made.train_from_iterator(CORPUS, trainer)
  return made


def llama() -> tokenizers.Tokenizer:
  """As LLaMA's: pieces of SentencePiece, with bytes for the rest."""
  trained = tokenizers.Tokenizer(models.BPE())
  trained.normalizer = normalizers.Replace(' ', '\u2581')
  trainer = trainers.BpeTrainer(vocab_size=97, show_progress=False)
  trained.train_from_iterator(CORPUS, trainer)
  state = json.loads(trained.to_str())['model']
  first = ['<unk>', '<s>', '</s>', *(f'<0x{b:02X}>' for b in range(256))]
  pieces = [*first, *sorted(state['vocab'], key=state['vocab'].__getitem__)]
  model = models.BPE(
    {piece: i for i, piece in enumerate(pieces)},
    [tuple(pair) for pair in state['merges']],
    unk_token='<unk>',
    fuse_unk=True,
    byte_fallback=True,
  )
  made = tokenizers.Tokenizer(model)
  made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='first', split=False)
  made.decoder = decoders.Sequence(
    [
      decoders.Replace('\u2581', ' '),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(' ', 1, 0),
    ]
  )
  made.add_special_tokens(
    [tokenizers.AddedToken(name, normalized=False, special=True) for name in first[:3]]
  )
  starting(made, '<s>')
  return made


def starting(made: tokenizers.Tokenizer, bos: str) -> None:
  """Puts a token before each text."""
  made.post_processor = processors.TemplateProcessing(
    single=f'{bos} $A', pair=f'{bos} $A {bos}:1 $B:1', special_tokens=[(bos, made.get_vocab()[bos])]
  )


def gpt2() -> tokenizers.Tokenizer:
  """Of two files in its first release, here of one."""
  made = byte_level()
  made.add_special_tokens(['<|endoftext|>'])
  return made


def smollm2() -> tokenizers.Tokenizer:
  """With the tokens of ChatML."""
  made = byte_level(digits=True)
  made.add_special_tokens(['<|endoftext|>', '<|im_start|>', '<|im_end|>'])
  return made


def llama3() -> tokenizers.Tokenizer:
  """Byte-level, with a first token and three that end something."""
  made = byte_level()
  made.add_special_tokens(
    [
      '<|begin_of_text|>',
      '<|end_of_text|>',
      '<|start_header_id|>',
      '<|end_header_id|>',
      '<|eot_id|>',
    ]
  )
  starting(made, '<|begin_of_text|>')
  return made


# Name: tokenizer, tokenizer_config.json, files beside it.
MADE = {
  'llama': (
    llama,
    {
      'tokenizer_class': 'LlamaTokenizer',
      'bos_token': {'__type': 'AddedToken', 'content': '<s>'},
      'eos_token': {'__type': 'AddedToken', 'content': '</s>'},
      'unk_token': '<unk>',
      'chat_template': LLAMA2,
    },
    {},
  ),
  'gpt2': (
    gpt2,
    {
      'tokenizer_class': 'GPT2Tokenizer',
      **{f'{r}_token': '<|endoftext|>' for r in ('bos', 'eos', 'unk')},
    },
    {},
  ),
  'smollm2': (
    smollm2,
    {
      'tokenizer_class': 'GPT2Tokenizer',
      'bos_token': '<|im_start|>',
      'eos_token': '<|im_end|>',
      'pad_token': '<|im_end|>',
      'unk_token': '<|endoftext|>',
      'chat_template': CHATML,
    },
    {},
  ),
  'llama3': (
    llama3,
    {
      'tokenizer_class': 'PreTrainedTokenizerFast',
      'bos_token': '<|begin_of_text|>',
      'eos_token': '<|eot_id|>',
    },
    {
      'chat_template.jinja': LLAMA3,
      'generation_config.json': json.dumps({'eos_token_id': [284, 287]}),
    },
  ),
}


def main() -> None:
  """Writes the folders and golden.json."""
  golden = {'transformers': transformers.__version__, 'names': NAMES}
  for name, (make, config, beside) in MADE.items():
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    make().save(os.path.join(folder, 'tokenizer.json'), pretty=False)
    beside = {**beside, 'tokenizer_config.json': json.dumps(config, indent=2)}
    for file, text in beside.items():
      with open(os.path.join(folder, file), 'w', encoding='utf-8') as f:
        f.write(text if file.endswith('jinja') else text + '\n')
    golden[name] = record(folder)
  made = transformers.AutoTokenizer.from_pretrained(os.path.join(HERE, 'smollm2'))
  golden['conventions'] = {
    'template': CONVENTIONS,
    'messages': CHATS[1],
    'text': made.apply_chat_template(CHATS[1], chat_template=CONVENTIONS, tokenize=False),
  }
  with open(os.path.join(HERE, 'golden.json'), 'w', encoding='utf-8') as f:
    json.dump(golden, f, indent=1)
    f.write('\n')


def record(folder: str) -> dict:
  """What AutoTokenizer does."""
  made = transformers.AutoTokenizer.from_pretrained(folder)
  found = {
    'bos': made.bos_token_id,
    'eos': made.eos_token_id,
    'pad': made.pad_token_id,
    'texts': [{'text': t, 'ids': made(t)['input_ids']} for t in TEXTS],
    'chats': [],
  }
  if made.chat_template:
    for chat in CHATS:
      for more in (False, True):
        options = {'conversation': chat, 'add_generation_prompt': more}
        ids = made.apply_chat_template(**options)['input_ids']
        text = made.apply_chat_template(**options, tokenize=False)
        found['chats'].append({'messages': chat, 'more': more, 'text': text, 'ids': ids})
  return found


if __name__ == '__main__':
  main()
