"""A pool as requests see it: which of its backends can be planned with, and under which family its answers are filed."""

from gateway.backends.view import BackendView, Pool
from gateway.core.names import PoolName
from support.backend_views import backend_view


def view(name: str, *models: str, version: str | None = "0.32.0") -> BackendView:
    return backend_view(name, engine_version=version, models=models)


def test_answers_are_filed_by_model_and_version_and_callers_cannot_invent_a_family() -> None:
    pool = Pool(PoolName("a+b"), (view("a", "tiny", "adapter"), view("b", "tiny", version="0.33.0")))
    assert pool.family("adapter") == "adapter on vllm 0.32.0 or vllm 0.33.0"
    assert pool.family(None) == pool.family("tiny") == "tiny on vllm 0.32.0 or vllm 0.33.0"
    assert pool.family("invented") == pool.family("other") == "other on vllm 0.32.0 or vllm 0.33.0"


def test_who_has_not_told_its_models_has_one_family() -> None:
    pool = Pool(PoolName("a"), (view("a", version=None),))
    assert pool.family("tiny") == pool.family(None) == "other on vllm ?"
    assert pool.planned == ()
    assert pool.largest is None
