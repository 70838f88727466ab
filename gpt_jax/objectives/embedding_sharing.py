# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How the two models of ELECTRA share their embeddings.

  es    both have one table: it follows both losses (ELECTRA, section 3.2)
  nes   each has its own
  gdes  E_D = sg(E_G) + E_Delta: the model reads the generator's table, which
        follows the generator's loss alone, with a difference of its own, which
        follows the other ("gradient-disentangled", He et al., 2021: DeBERTaV3,
        section 3.2 and equation 3; E_Delta is 0 at first)

With es the generator takes token, position and type vectors and their norm
from the model, as in ELECTRA's released code; its section 3.2 shares the first
two. With gdes the model keeps the differences, and each has its own norm.
"""

import jax

from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.objectives.base import Part, Scored
from gpt_jax.spec import UsageError

TABLES = ('embed', 'positions', 'segments')
SHARED = (*TABLES, 'embed_norm')
# -> what the generator takes from the model, and what the model adds to the
# generator's.
SHARINGS = {
  'es': (SHARED, ()),
  'nes': ((), ()),
  'gdes': ((), TABLES),
}


def part(sharing: str, scored: Scored, *, apart: bool) -> Part:
  """The generator.

  Args:
    sharing: one of `SHARINGS`.
    scored: see `Scored`.
    apart: whether the models are trained one after the other, without sharing.

  Raises:
    UsageError: there is no such sharing, or not of models that are apart.
  """
  if sharing not in SHARINGS:
    raise UsageError(
      f'objective.name: sharing={sharing!r}: unknown; one of '
      + ', '.join(SHARINGS)
    )
  if apart and sharing == 'gdes':
    raise UsageError(
      f'objective.name: sharing={sharing!r}: with generator_steps the models '
      'share nothing; leave one of the two out'
    )
  shared, added = SHARINGS['nes' if apart else sharing]
  return Part(shared, scored, added=added)


def check(model: Transformer, generator: Transformer, part: Part) -> None:
  """Checks that what they share has one shape.

  Raises:
    UsageError: names what has not.
  """
  ours, theirs = parameter_shapes(model), parameter_shapes(generator)
  for name in (*part.shared, *part.added):
    shapes = [
      {} if name not in tree else jax.tree.map(lambda x: x.shape, tree[name])
      for tree in (ours, theirs)
    ]
    if shapes[0] != shapes[1]:
      raise UsageError(
        f'models.generator: its {name} is {shapes[1]}, but it takes that of '
        f'model, {shapes[0]}; give both the same vocab_size, context_length, '
        'position, token_types and norm, and where d_model differs '
        f"models.generator.input='tokens(..., d_embed=...)'"
      )


def check_same_size(model: Transformer, generator: Transformer) -> None:
  """Checks that the model can start as the generator.

  Raises:
    UsageError: names a parameter that differs.
  """
  ours, theirs = (
    {
      jax.tree_util.keystr(path, simple=True, separator='/'): x.shape
      for path, x in jax.tree_util.tree_leaves_with_path(parameter_shapes(of))
    }
    for of in (model, generator)
  )
  for name, shape in ours.items():
    if theirs.get(name) != shape:
      raise UsageError(
        f'models.generator: its {name} is {theirs.get(name, "missing")}, and '
        f"the model's {shape}; with generator_steps the model starts as the "
        'generator: give both the same size'
      )
