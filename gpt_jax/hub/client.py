# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The client of the Hub: its errors as one line, and the room for its files.

Endpoint, cache, token and offline mode are huggingface_hub's own: HF_ENDPOINT,
HF_HOME, HF_TOKEN, HF_HUB_OFFLINE.
"""

import contextlib
import importlib
import io
import os
import shutil
from collections.abc import Iterator
from typing import Any

from rich import filesize

from gpt_jax.core.files import progress
from gpt_jax.core.spec import UsageError, optional

_LOG_IN = 'log in with `hf auth login`, or set HF_TOKEN'


def library(given: str) -> Any:
  """huggingface_hub, with the modules we use; `given` says who needs it."""
  hub = optional('huggingface_hub', f'{given}: needs huggingface_hub', 'hub')
  for module in ('constants', 'errors', 'utils'):
    importlib.import_module(f'huggingface_hub.{module}')
  return hub


def api(given: str) -> Any:
  """A client of the endpoint that is set."""
  return library(given).HfApi(library_name='gpt_jax')


@contextlib.contextmanager
def told(given: str) -> Iterator[None]:
  """Turns what goes wrong with the Hub into one line.

  Args:
    given: how the line begins: the flag or the field, with its value.
  """
  hub, http = library(given), importlib.import_module('httpx2')
  errors, endpoint = hub.errors, hub.constants.ENDPOINT
  try:
    yield
  except errors.GatedRepoError as e:
    why = f'is gated: accept its terms on its page at {endpoint}, then {_LOG_IN}'
    raise _line(given, why) from e
  except errors.RepositoryNotFoundError as e:
    why = f'{endpoint} has no such repository, or hides it: check the name, or {_LOG_IN}'
    raise _line(given, why) from e
  except errors.RevisionNotFoundError as e:
    raise _line(
      given, 'the repository has no such revision; name a branch, a tag or a commit'
    ) from e
  except errors.HFValidationError as e:
    raise _line(given, f'is not the name of a repository: {_first(e)}') from e
  except (
    errors.OfflineModeIsEnabled,
    errors.RevisionResolutionError,
    errors.CachedRepoTreeNotFoundError,
    errors.LocalEntryNotFoundError,
  ) as e:
    cache = f'is not, or not as a whole, in the cache {hub.constants.HF_HUB_CACHE}'
    if hub.is_offline_mode():
      why = f'{cache}, and HF_HUB_OFFLINE is set; unset it'
    else:
      why = f'{cache}, and {endpoint} cannot be reached: {_first(e.__cause__ or e)}'
    raise _line(given, why) from e
  except errors.HfHubHTTPError as e:
    status = e.response.status_code
    remedy = f'this token may not do so; {_LOG_IN}'
    if status not in (401, 403):
      remedy = 'give the same command again'
    why = f'{endpoint} answers {status} ({e.server_message or _first(e)}); {remedy}'
    raise _line(given, why) from e
  except RuntimeError as e:  # of a file of an upload
    if e.__cause__ is None or not isinstance(e.__cause__, http.HTTPError):
      raise
    raise _line(given, f'{_first(e)} ({_first(e.__cause__)}); give the same command again') from e
  except http.HTTPError as e:
    why = f'{endpoint} cannot be reached: {_first(e)}; give the same command again, or set '
    raise _line(given, f'{why}HF_HUB_OFFLINE=1 to take what is in the cache') from e
  except OSError as e:
    if e.errno is not None and not isinstance(e, errors.FileMetadataError):
      raise  # of the disk
    raise _line(given, f'{_first(e)}; give the same command again') from e


def _line(given: str, why: str) -> UsageError:
  return UsageError(f'{given}: {why}')


def _first(error: BaseException) -> str:
  """The first line of what an error says; below may be a page of help."""
  return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def reported(given: str, total: int) -> Iterator[type]:
  """A class of bars for the library, which reports the bytes that came as ours do."""
  most = 0
  with progress.bar() as report:

    class Reported(library(given).utils.tqdm):
      """Draws nothing itself."""

      def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs | {'file': io.StringIO(), 'disable': False})

      def display(self, *_: Any, **__: Any) -> None:
        nonlocal most
        if self.unit == 'B':  # received, or written; another bar counts files
          most = min(max(most, int(self.n)), total)
          report('fetched', most, total)

    yield Reported


def bars(given: str) -> contextlib.AbstractContextManager[Any]:
  """The library's own bars on a terminal, and none in a file of logs."""
  if progress.console.is_terminal:
    return contextlib.nullcontext()
  return library(given).utils.disable_progress_bars()


def check_room(given: str, num_bytes: int) -> None:
  """Refuses a download for which the disk of the cache has no room."""
  cache = library(given).constants.HF_HUB_CACHE
  there = os.path.abspath(cache)
  while not os.path.isdir(there):
    there = os.path.dirname(there)
  free = shutil.disk_usage(there).free
  if num_bytes > free:
    raise UsageError(
      f'{given}: {size(num_bytes)} are to be fetched, and {cache} has room for '
      f'{size(free)}; make room, or set HF_HOME to a folder on a larger disk'
    )


def size(num_bytes: int) -> str:
  """`13.5 GB`, of 10^9 bytes."""
  return filesize.decimal(num_bytes)
