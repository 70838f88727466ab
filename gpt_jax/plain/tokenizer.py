# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of the store: its pieces, and the ids with a meaning of their own."""

import json


def sentencepiece_pieces(folder: str) -> list[bytes]:
  """The pieces of a SentencePiece model, by id."""
  with open(f'{folder}/tokenizer/sentencepiece.model', 'rb') as file:
    data, at, pieces = file.read(), 0, []

  def number(at: int) -> tuple[int, int]:
    # Seven bits to a byte, the lowest first; all but the last are 128 and more.
    stop = next(i for i in range(at, len(data)) if data[i] < 128) + 1
    return sum((data[i] & 127) << 7 * (i - at) for i in range(at, stop)), stop

  # A message of protocol buffers: its first field, repeated, is a piece, whose first is its text.
  while at < len(data) and data[at] == 0x0A:
    size, at = number(at + 1)
    length, begin = number(at + 1)
    pieces.append(data[begin : begin + length])
    at += size
  return pieces


def sentencepiece_text(folder: str, ids: list[int]) -> str:
  """The text of ids; pieces such as <0x0A> are bytes."""
  pieces, text = sentencepiece_pieces(folder), b''
  for piece in (pieces[i] for i in ids):
    is_byte = len(piece) == 6 and piece.startswith(b'<0x')
    text += bytes([int(piece[3:5], 16)]) if is_byte else piece
  return text.decode(errors='replace').replace('\u2581', ' ')


def byte_text(folder: str, ids: list[int]) -> str:
  """The text of ids that are bytes."""
  return bytes(i for i in ids if i < 256).decode(errors='replace')


def id_text(folder: str, ids: list[int]) -> str:
  """The ids: their tokenizer turns them into text."""
  return ' '.join(map(str, ids))


text_of = sentencepiece_text


def wordpiece_ids(folder: str) -> dict[str, int]:
  """The pieces of a WordPiece vocabulary, and their ids."""
  with open(f'{folder}/tokenizer/hf_tokenizer.json', encoding='utf-8') as file:
    return json.load(file)['model']['vocab']
