# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The metrics that a run logs: `METRICS` has the unit and definition of each.

`gpt-jax inspect --metrics` prints docs/metrics.md from it. In names, capitals
stand for a part that varies: a set, a source, a layer's number. A metric of
one objective or command is a row here, beside the code that computes it.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Metric(NamedTuple):
  """A metric.

  Attributes:
    unit: '' for pure numbers and shares.
    definition: what it is, of what, and over what a mean is taken.
  """

  unit: str
  definition: str


# By what logs them. A text without "of the step" is a figure of the last step
# before the line.
METRICS: Mapping[str, Mapping[str, Metric]] = {
  'Every line': {
    'step': Metric('steps', 'Steps done.'),
    'time': Metric('s', 'Unix time at which the line was written.'),
  },
  'Training, every `log.every_steps`': {
    'loss': Metric(
      'nats',
      'Loss of the last step, without penalties: a mean over the tokens, or '
      'rows, that count.',
    ),
    'grad_norm': Metric('', 'Norm of its gradient, before clipping.'),
    'outer_grad_norm': Metric(
      '',
      'With `optim.outer`: norm of the last outer gradient; at first 0.',
    ),
    'learning_rate': Metric('', 'Learning rate of the last step.'),
    'tokens': Metric('tokens', 'Tokens read since the first step.'),
    'epochs': Metric('', 'Passes over the data since the first step.'),
    'epochs/SOURCE': Metric('', 'The same over a source of a mixture.'),
    'batch_rows': Metric('rows', 'Rows of the batch of the last step.'),
    'row_tokens': Metric('tokens', 'Length of its rows, if that changes.'),
    'rows': Metric(
      'rows', 'Rows read since the first step, if their length changes.'
    ),
    'task': Metric('', 'The task of the last step, if there are several.'),
    'tokens_per_second': Metric(
      'tokens/s', 'Speed since the last line, over all devices.'
    ),
    'step_seconds': Metric('s', 'Mean time of a step since the last line.'),
    'data_wait_seconds': Metric('s', 'The part of it spent waiting for data.'),
    'mfu': Metric(
      '',
      'Model FLOPs per second over the peak of the devices, with attention '
      'counted whole.',
    ),
    'mfu_causal': Metric('', 'The same, counting the keys that are visible.'),
    'mfu_compiler': Metric('', "The same, counting the compiler's products."),
  },
  'Experts, means since the last line': {
    'router/STACK/layer_N/load': Metric(
      '', 'Share of the assignments of each expert: a list.'
    ),
    'router/STACK/layer_N/dead': Metric('experts', 'Experts without a token.'),
    'router/STACK/layer_N/dropped': Metric(
      '', "Share of the assignments past their expert's capacity."
    ),
    'router/STACK/layer_N/entropy': Metric(
      'nats', "Entropy of the router's probabilities; ln E if uniform."
    ),
    'router/STACK/layer_N/balance': Metric(
      '', 'Load-balancing loss without its factor; 1 if balanced.'
    ),
    'router/STACK/layer_N/z_loss': Metric(
      '', "Mean of log(Z)^2 of the router's softmax."
    ),
    'router/STACK/layer_N/penalty': Metric(
      'nats', 'Both losses, times their factors, as added to the loss.'
    ),
  },
  'Held-out sets': {
    'eval/SET/loss': Metric('nats', 'Mean loss over all tokens that count.'),
    'eval/SET/tokens': Metric('tokens', 'The number of these tokens.'),
    'eval/SET/perplexity': Metric('', 'exp of the mean loss of the text.'),
    'eval/SET/bits_per_byte': Metric(
      'bits', 'Sum of the losses over the bytes of the text in UTF-8.'
    ),
    'eval/SET/word_perplexity': Metric(
      '', 'exp of the sum of the losses over the words of the original text.'
    ),
    'eval/SET/METRIC': Metric(
      '',
      'A metric of the objective below, over the whole set; or a metric of a '
      'task or of a fine-tuned model.',
    ),
    'eval_seconds': Metric('s', 'How long the evaluation took.'),
  },
  'Objectives': {
    'objective/masked_loss': Metric('nats', 'Loss of the masked tokens.'),
    'objective/masked_accuracy': Metric(
      '', 'Share of them that is predicted correctly; on held-out sets.'
    ),
    'objective/pair_loss': Metric('nats', 'Loss of the label of each pair.'),
    'objective/pair_accuracy': Metric('', 'Share of pairs with the label.'),
    'objective/replaced_loss': Metric(
      'nats', 'ELECTRA: loss of whether a token is replaced, over all tokens.'
    ),
    'objective/replaced_accuracy': Metric(
      '', 'Share of tokens judged correctly.'
    ),
    'objective/replaced_recall': Metric(
      '', 'Share of replaced tokens that are found.'
    ),
    'objective/replaced_share': Metric('', 'Share of tokens replaced.'),
    'objective/token_loss': Metric(
      'nats', 'Loss of the original token, where the model predicts it.'
    ),
    'objective/token_accuracy': Metric(
      '', 'Share of target tokens that are predicted.'
    ),
    'objective/KIND_loss': Metric(
      'nats', 'UniLM: loss of the rows of one attention mask.'
    ),
    'objective/KIND_accuracy': Metric('', 'UniLM: the share predicted.'),
    'objective/WAY_MEASURE': Metric(
      'nats',
      'ELMo: `loss` of one way, and in training `sampled_loss`, over the '
      'sampled words.',
    ),
    'objective/target_N_loss': Metric(
      'nats', 'Character model: loss of the N-th next character.'
    ),
    'objective/hard_loss': Metric('nats', 'Distillation: loss of the text.'),
    'objective/soft_loss': Metric(
      'nats', "Distillation: loss of the teacher's probabilities, times T^2."
    ),
    'objective/cosine_loss': Metric(
      '', 'Distillation: 1 - cosine of the last hidden states.'
    ),
    'objective/VIEW_kl': Metric(
      'nats', 'CVT: divergence of a view from the whole model.'
    ),
    'objective/lm_loss': Metric(
      'nats', 'Fine-tuning: loss of the text itself, before its factor.'
    ),
    'mean_token_accuracy': Metric('', '`sft`: share of the tokens predicted.'),
    'entropy': Metric('nats', '`sft`: mean entropy of the predictions.'),
  },
  'Preferences: `reward` and `dpo`': {
    'rewards/chosen': Metric(
      'nats',
      '`dpo`: `beta` times the log-ratio to the reference, of the better '
      'completion.',
    ),
    'rewards/rejected': Metric('nats', '`dpo`: the same of the worse one.'),
    'rewards/margins': Metric('nats', '`dpo`: difference of the two.'),
    'rewards/accuracies': Metric('', '`dpo`: share of margins above 0.'),
    'logps/chosen': Metric(
      'nats', '`dpo`: log-probability of the better completion.'
    ),
    'logps/rejected': Metric(
      'nats', '`dpo`: log-probability of the worse one.'
    ),
    'accuracy': Metric('', '`reward`: share of pairs ranked right.'),
    'margin': Metric('', '`reward`: mean difference of the rewards of a pair.'),
    'mean_reward': Metric('', '`reward`: mean of all rewards.'),
  },
  'Rollouts: `grpo` and `ppo`': {
    'reward': Metric('', 'Mean reward of the completions.'),
    'reward_std': Metric('', 'Mean deviation within the groups of a prompt.'),
    'frac_reward_zero_std': Metric('', 'Share of groups without a deviation.'),
    'completions/mean_length': Metric('tokens', 'Mean length.'),
    'completions/min_length': Metric('tokens', 'Minimum length.'),
    'completions/max_length': Metric('tokens', 'Maximum length.'),
    'completions/clipped_ratio': Metric('', 'Share cut at the limit.'),
    'rollout/tokens_per_second': Metric('tokens/s', 'Speed of decoding.'),
    'time/PART': Metric('s', 'Time that a part of a rollout took.'),
    'memory/PART': Metric('bytes', "The process's peak memory in that part."),
    'objective/kl': Metric(
      'nats', 'Sum of the divergence from the reference, mean over completions.'
    ),
    'objective/entropy': Metric(
      'nats', 'Minus the log-probability of a completion.'
    ),
    'objective/scores': Metric('', 'Mean score of the reward model.'),
    'objective/non_score_reward': Metric('', 'Minus `kl_coef` times the KL.'),
    'objective/rlhf_reward': Metric('', 'Score, penalties and KL together.'),
    'clip_ratio/low_mean': Metric('', 'Share of tokens clipped from below.'),
    'clip_ratio/high_mean': Metric('', 'Share of tokens clipped from above.'),
    'clip_ratio/region_mean': Metric('', 'Share of tokens clipped.'),
    'kl': Metric('nats', '`grpo`: divergence from the reference, per token.'),
    'loss/policy_avg': Metric('', '`ppo`: loss of the policy, per token.'),
    'loss/value_avg': Metric('', '`ppo`: loss of the values, per token.'),
    'loss/ptx_avg': Metric('nats', '`ppo`: loss of the pre-training text.'),
    'policy/approxkl_avg': Metric(
      'nats', 'Divergence from the policy that drew, per token.'
    ),
    'policy/clipfrac_avg': Metric(
      '', 'Share of tokens whose ratio is clipped.'
    ),
    'val/clipfrac_avg': Metric('', 'Share of tokens whose value is clipped.'),
    'val/ratio': Metric(
      '', 'Mean ratio of the probability of a token to that when it was drawn.'
    ),
  },
}

# Lines with an `event`: its name, and the other fields of the line.
EVENTS: Mapping[str, str] = {
  'start': 'A process begins; `seconds` since its start, `context_length`, '
  '`rows_per_epoch`, `jax`, `device`, `devices`, `processes`, `mesh`, '
  '`micro_rows`, `parameters`; `command`, the fields that its flags set '
  '(`overrides`) and those that the program has `filled` in; after a stop '
  '`lost_steps`, `lost_seconds` and `previous_time`; `rewound` after a rewind.',
  'compiled': 'The step was compiled, in `seconds`, for batches of `rows` of '
  '`length` tokens; of a `task`, if there are several.',
  'first_step': 'The first step is done, `seconds` after the start.',
  'saved': 'A checkpoint was saved, and training stood still for `seconds`; '
  "`tier` is 'local' for one in the hosts' memory.",
  'skipped': 'An update was left out; `spike` is its file.',
  'spike': 'The run stops or goes back at a loss spike.',
  'rewind': 'The run went back to this step from `spike_step`, and leaves out '
  '`rows_skipped`.',
  'unlogged': 'The figures of `routers` since the last line, saved with a '
  'checkpoint so that the next line is the same after a resume.',
}


def page() -> str:
  """docs/metrics.md."""
  return '\n'.join(_lines())


def _lines() -> Iterator[str]:
  yield '# Metrics'
  yield '\n<!-- page: gpt-jax inspect --metrics -->\n'
  yield (
    'The fields of `metrics.jsonl`, and what trackers show. In names,\n'
    'capitals stand for a part that varies. A loss is in nats per token\n'
    'unless it says otherwise. NaN and infinite numbers, which JSON lacks,\n'
    'are the texts `"nan"`, `"inf"` and `"-inf"`. How MFU is counted:\n'
    '[training](training.md#mfu).'
  )
  for title, metrics in METRICS.items():
    yield f'\n## {title}\n\n| metric | unit | |\n|---|---|---|'
    for name, (unit, definition) in metrics.items():
      yield f'| `{name}` | {unit} | {definition} |'
  yield '\n## Events\n\n| `event` | |\n|---|---|'
  for name, said in EVENTS.items():
    yield f'| `{name}` | {said} |'
