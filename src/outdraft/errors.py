"""Every error outdraft raises on purpose.

    OutdraftError
    ├── SettingsError        a value or a combination of values that cannot be honoured
    ├── ModelError           something is wrong with the model a user named
    │   ├── UnknownModelError    nothing of that name is here, on the hub or among the aliases
    │   ├── FetchError           it could not be downloaded, or what came was not what was asked for
    │   ├── UnsupportedModelError  it is there, but no causal language model that can be driven
    │   └── SelfTestError        it was loaded, and a k-row pass disagrees with k one-row passes
    ├── DrafterError         a drafter is unknown, does not fit the target or broke its contract
    ├── QueueFullError       more requests wait than a session lets wait
    └── CacheError           the cache was asked for something it cannot do exactly

Each message names the values involved and the way out.
"""


class OutdraftError(Exception):
    """Base of all errors raised on purpose."""


class SettingsError(OutdraftError, ValueError):
    """A setting, or a combination of settings, that cannot be honoured."""


class ModelError(OutdraftError):
    """Something is wrong with the model a user named."""


class UnknownModelError(ModelError):
    """Nothing of that name is a local path, an alias or a reachable hub id."""


class FetchError(ModelError):
    """A model could not be downloaded whole, or is not what was asked for."""


class UnsupportedModelError(ModelError):
    """The model exists, but it is not a causal language model that outdraft can drive."""


class SelfTestError(ModelError):
    """A pass over several rows disagrees with the same rows read one by one."""


class NativeError(OutdraftError):
    """The compiled kernels are not to be had here; everything works without them, slower."""


class DrafterError(OutdraftError):
    """A drafter is unknown, does not fit the target, or broke its contract."""


class QueueFullError(OutdraftError):
    """A session has as many waiting requests as it may have; try again when some have ended."""


class CacheError(OutdraftError):
    """The cache was asked for something it cannot do exactly."""
