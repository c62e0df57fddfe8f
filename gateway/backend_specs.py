"""From settings to what is to be known of each backend before it is asked: address, key, and what the operator gave.

`serve` and `check` build their roster from the same specs, so that what check finds is what serve would do.
"""

from collections.abc import Mapping

from gateway.backend_settings import BackendAddress, read_backend_keys
from gateway.backends.backend_spec import BackendSpec
from gateway.backends.capacity import GivenCapacity
from gateway.backends.fitted_geometry import GivenGeometry, GivenMemory
from gateway.backends.roster import clean_url
from gateway.core.geometry.model_config import read_model
from gateway.core.names import BackendName
from gateway.model_files import ModelFiles, read_model_files
from gateway.settings import Settings
from gateway.tokens.media import MediaCosts, read_costs


def backend_keys(settings: Settings) -> dict[BackendName, str]:
    """The key of each backend that has one. Raises OSError, ValueError for a file of keys that went wrong since the start."""
    by_name = read_backend_keys(settings.backend_keys_file) if settings.backend_keys_file is not None else {}
    keys = {address.name: by_name.get(address.name, settings.backend_key) for address in settings.backends}
    return {name: key.get_secret_value() for name, key in keys.items() if key is not None}


def backend_spec(
    settings: Settings, address: BackendAddress, keys: Mapping[BackendName, str]
) -> tuple[BackendSpec, tuple[str, ...]]:
    """The spec of one backend, and what was cut from its URL, in sentences.

    Raises ValueError for a model's config that went wrong since the settings were checked.
    """
    name = address.name
    url, cuts = clean_url(address.url)
    path = settings.model_config_path.of(name)
    files = read_model_files(path) if path is not None else None
    given = GivenCapacity(
        kv_blocks=settings.kv_blocks.of(name),
        block_tokens=settings.block_tokens.of(name),
        max_context=settings.max_context.of(name),
        seats=settings.seats.of(name),
        share=settings.share.of(name),
        geometry=_geometry(settings, name, files),
        memory=_memory(settings, name, files),
        reserve=settings.reserve.of(name),
    )
    spec = BackendSpec(
        name=name,
        url=url,
        engine=settings.engine.of(name),
        key=keys.get(name),
        metrics_url=settings.engine_metrics.of(name),
        given=given,
    )
    return spec, cuts


def given_name(spec: BackendSpec) -> BackendName:
    """The name under which settings speak of a backend: engines behind one address share what was given for it."""
    return BackendName(spec.name.removesuffix(f".{spec.rank}")) if spec.rank is not None else spec.name


def media_costs(settings: Settings, name: BackendName) -> MediaCosts:
    """What the model's files and the operator say of images and the like. Raises ValueError as `backend_spec` does."""
    given = settings.media_tokens.of(name).by_kind
    path = settings.model_config_path.of(name)
    if path is None:
        return MediaCosts(given=given)
    files = read_model_files(path)
    return read_costs(files.config, files.processor, given)


def _geometry(settings: Settings, name: BackendName, files: ModelFiles | None) -> GivenGeometry | None:
    if files is None:
        return None
    model = read_model(files.config, quant_config=files.quant_config)
    return GivenGeometry(model, settings.kv_dtype.of(name), settings.tp.of(name), settings.pp.of(name))


def _memory(settings: Settings, name: BackendName, files: ModelFiles | None) -> GivenMemory | None:
    total, weights = settings.memory.of(name), settings.weights.of(name)
    if total is None or files is None:
        return None
    if weights is None and files.weights_bytes is not None:
        stages = settings.pp.of(name).split("+")
        ranks = settings.tp.of(name) * (len(stages) if len(stages) > 1 else int(stages[0]))
        return GivenMemory(total, -(-files.weights_bytes // ranks), settings.runtime.of(name) or 0, weights_are_estimate=True)
    return GivenMemory(total, weights or 0, settings.runtime.of(name) or 0)
