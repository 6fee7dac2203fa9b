"""Caches by name: the interface that engines know, every option, and what each becomes."""

from __future__ import annotations

import inspect
import logging
import math
import pickle
import runpy
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import EasyCache, ErrorControl, EveryNth, Polynomial, ResidualDiff, SeaCache, Strategy, TeaCache
from omnireuse.diffusion.cache.base import CacheBackend, StepCacheBackend
from omnireuse.diffusion.cache.magcache import MagCacheBackend, MagCacheConfig, published_ratios
from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from omnireuse.diffusion.cache.selector import get_cache_backend
from omnireuse.diffusion.cache.teacache import (
    TeaCacheBackend,
    TeaCacheConfig,
    published_coefficients,
    register_extractor,
)
from omnireuse.diffusion.data import DiffusionCacheConfig, OmniDiffusionConfig
from omnireuse.errors import (
    ConfigError,
    NothingPublishedError,
    StateError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from omnireuse.named.step_caches import STEP_CACHES, config_of
from tests import TOP
from tests.helpers.foreign import IDENTITY, Foreign, denoise, take_apart
from tests.helpers.tiny import TINY, Tiny

DEFAULTS = {
    "rel_l1_thresh": 0.2,
    "coefficients": None,
    "mag_threshold": 0.24,
    "mag_max_skip_steps": 5,
    "mag_retention_ratio": 0.1,
    "mag_ratios": None,
    "mag_calibrate": False,
    "Fn_compute_blocks": 1,
    "Bn_compute_blocks": 0,
    "max_warmup_steps": 4,
    "max_cached_steps": -1,
    "residual_diff_threshold": 0.24,
    "max_continuous_cached_steps": 3,
    "enable_taylorseer": False,
    "taylorseer_order": 1,
    "scm_steps_mask_policy": None,
    "scm_steps_policy": "dynamic",
    "num_inference_steps": None,
    "force_refresh_step_hint": None,
    "force_refresh_step_policy": "once",
}


@pytest.fixture(params=sorted(STEP_CACHES))
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "cache_dit":
        pytest.importorskip("cache_dit", reason="the extra cache-dit is not installed")
    return str(request.param)


# -- configurations ---------------------------------------------------------------------------------------------------


def test_the_specified_fields_defaults_and_positions() -> None:
    assert vars(DiffusionCacheConfig()).items() >= DEFAULTS.items(), "fields of our own stand beside them"
    assert DiffusionCacheConfig.from_dict({}) == DiffusionCacheConfig()
    by_position = [field.name for field in fields(DiffusionCacheConfig) if not field.kw_only]
    assert by_position == list(DEFAULTS), "the order of the specification"
    assert DiffusionCacheConfig(*DEFAULTS.values()) == DiffusionCacheConfig()
    with pytest.raises(TypeError, match="positional"):
        DiffusionCacheConfig(*vars(DiffusionCacheConfig()).values())  # our own fields have no place in that order
    tea = {"rel_l1_thresh": 0.3, "coefficients": [1, 2.0, -3, 4, 0.5], "transformer_type": "Any"}
    assert TeaCacheConfig(*tea.values()) == TeaCacheConfig(**tea)
    mag = {"threshold": 0.3, "max_skip_steps": 4, "retention_ratio": 0.2, "num_inference_steps": 10}
    mag |= {"mag_ratios": [1.0, 0.9], "mag_calibrate": False, "transformer_type": "Any"}
    assert MagCacheConfig(*mag.values()) == MagCacheConfig(**mag)
    assert OmniDiffusionConfig("tea_cache", {"rel_l1_thresh": 0.3}).cache_config == DiffusionCacheConfig(0.3)


@pytest.mark.parametrize(
    "field",
    ["rel_l1_thresh", "mag_threshold", "residual_diff_threshold", "easy_thresh", "sea_thresh", "error_tolerance"],
)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "high", None])
def test_thresholds_must_be_finite_and_positive(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"DiffusionCacheConfig\({field}=.*{field} must be a finite number above 0"):
        DiffusionCacheConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("coefficients", ([1, 2, 3], [1, 2, 3, 4, math.inf])),
        ("mag_ratios", ([], [1.0, 0.0], "1,1")),
        ("mag_retention_ratio", (1.0,)),
        ("mag_max_skip_steps", (0,)),
        ("mag_calibrate", ("yes",)),
        ("Fn_compute_blocks", (0,)),
        ("Bn_compute_blocks", (-1,)),
        ("max_warmup_steps", (-1,)),
        ("max_cached_steps", (-2,)),
        ("max_continuous_cached_steps", (-2,)),
        ("enable_taylorseer", (1,)),
        ("taylorseer_order", (0,)),
        ("scm_steps_mask_policy", ("fastest",)),
        ("scm_steps_policy", ("moving",)),
        ("num_inference_steps", (0,)),
        ("force_refresh_step_hint", (-1,)),
        ("force_refresh_step_policy", ("often",)),
        (r"error_tolerance must be below 1, got .*0\.05 is 5 %", (1, 5.0)),
    ],
)
def test_every_field_is_checked(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=field):
            DiffusionCacheConfig(**{field.split()[0]: value})


def test_mappings_json_and_configs_are_taken_and_all_else_refused() -> None:
    for given in ({"rel_l1_thresh": 0.3}, '{"rel_l1_thresh": 0.3}', DiffusionCacheConfig(rel_l1_thresh=0.3)):
        assert OmniDiffusionConfig(cache_backend="tea_cache", cache_config=given).cache_config.rel_l1_thresh == 0.3
    assert OmniDiffusionConfig().cache_config == DiffusionCacheConfig()
    with pytest.raises(UnknownNameError, match="unknown cache option 'rel_l1_threshold'; did you mean 'rel_l1_thresh'"):
        DiffusionCacheConfig.from_dict({"rel_l1_threshold": 0.3})
    for other in ([("rel_l1_thresh", 0.3)], "x", 3, None):
        with pytest.raises(TypeError):
            DiffusionCacheConfig.from_dict(other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="line 2, column 2"):
        OmniDiffusionConfig(cache_config='{"rel_l1_thresh": 0.3,\n }')
    with pytest.raises(WrongTypeError):
        OmniDiffusionConfig(cache_config="[1, 2]")


@pytest.mark.parametrize("text", ["tea_cache", "TEA_CACHE", " Tea_Cache "])
def test_the_environment_counts_without_a_choice_in_any_case(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DIFFUSION_CACHE_BACKEND", text)
    assert OmniDiffusionConfig().cache_backend == "tea_cache"
    assert OmniDiffusionConfig(cache_backend="mag_cache").cache_backend == "mag_cache"
    assert OmniDiffusionConfig(cache_backend="none").cache_backend == "none"
    monkeypatch.setenv("DIFFUSION_CACHE_BACKEND", "")
    assert OmniDiffusionConfig().cache_backend is None


def test_the_page_and_the_types_say_what_is_declared() -> None:
    script = runpy.run_path(str(TOP / "scripts" / "options.py"))
    for path, write in ((script["PAGE"], script["page"]), (script["TYPES"], script["types"])):
        text = path.read_text(encoding="utf-8")
        assert write(text) == text, "run: python scripts/options.py"
    for each in (*STEP_CACHES, *(field.name for field in fields(DiffusionCacheConfig))):
        assert f"`{each}`" in script["table_of"](STEP_CACHES)


# -- backends ---------------------------------------------------------------------------------------------------------


def test_the_selector() -> None:
    assert get_cache_backend(None, {}) is get_cache_backend("none", {}) is None
    backend = get_cache_backend("tea_cache", {"rel_l1_thresh": 0.4})
    assert isinstance(backend, TeaCacheBackend)
    assert repr(backend).startswith("TeaCacheBackend(config=DiffusionCacheConfig(rel_l1_thresh=0.4")
    with pytest.raises(ValueError, match=r"known: .*tea_cache"):
        get_cache_backend("speedy", {})


OPTIONS: dict[str, dict[str, Any]] = {
    "cache_dit": {"residual_diff_threshold": 0.9, "scm_steps_mask_policy": "fast", "scm_steps_policy": "static"},
    "db_cache": {"residual_diff_threshold": 0.9, "scm_steps_mask_policy": "fast"},
    "first_block_cache": {"residual_diff_threshold": 0.9},
    "mag_cache": {"mag_ratios": [1.0, *[0.98] * 9]},
    "tea_cache": {"rel_l1_thresh": 0.6, "coefficients": [0, 0, 0, 0.3, 0]},
    "easy_cache": {"easy_thresh": 0.7},
    "sea_cache": {"sea_thresh": 0.6},
    "taylorseer": {},
    "error_control": {"error_tolerance": 0.9},
}


def test_every_backend_keeps_the_contract(flux: Tiny, name: str) -> None:
    known = {field.name for field in fields(DiffusionCacheConfig)}
    assert set(STEP_CACHES[name].options) <= known
    with pytest.raises(UnknownNameError, match="unknown option of"):
        config_of(name, dict.fromkeys(known))
    backend = get_cache_backend(name, {"rel_l1_thresh": 0.3, "Fn_compute_blocks": 2})
    assert isinstance(backend, CacheBackend)
    assert backend.config == DiffusionCacheConfig(rel_l1_thresh=0.3, Fn_compute_blocks=2)
    parameters = inspect.signature(backend.refresh).parameters
    assert list(parameters) == ["pipeline", "num_inference_steps", "verbose"]
    assert parameters["verbose"].default is True
    assert (backend.is_enabled(), backend.stats()) == (False, {})
    with pytest.raises(UnknownNameError, match="did you mean 'rel_l1_thresh'"):
        get_cache_backend(name, {"rel_l1_tresh": 0.3})
    with pytest.raises(WrongTypeError, match=r"config must be a DiffusionCacheConfig or a mapping, got a float"):
        get_cache_backend(name, 0.3)  # type: ignore[arg-type]  # the mistake that is tested
    if name != "cache_dit":
        strategy = STEP_CACHES[name].strategy(DiffusionCacheConfig(**OPTIONS[name]), flux.pipe)
        assert strategy.region == STEP_CACHES[name].skips


def test_a_backend_from_enable_to_disable(flux: Tiny, name: str) -> None:
    full = flux.run(steps=10)
    backend = get_cache_backend(name, OPTIONS[name])
    assert isinstance(backend, StepCacheBackend)
    with pytest.raises(StateError, match="not enabled"):
        backend.refresh(flux.pipe, 10)
    backend.enable(flux.pipe)
    assert backend.handle is not None
    with pytest.raises(StateError, match="enabled already"):
        backend.enable(flux.pipe)
    backend.refresh(flux.pipe, 10)
    told = flux.run(steps=10)
    assert not torch.equal(told, full)
    # A request without a step count leaves it to the scheduler; what an earlier request said does not stay.
    backend.refresh(flux.pipe, 0)
    assert torch.equal(flux.run(steps=10), told)
    backend.refresh(flux.pipe, 0, verbose=False)
    flux.run(steps=14)
    last = [event for event in backend.handle.events if event.run == 3]
    assert {event.total for event in last} == {14}
    assert any(event.reused for event in last)
    assert backend.stats()["runs"] == 3
    for wrong in (-1, 1.5, None, True):
        with pytest.raises(ConfigError, match="num_inference_steps must be a whole number of at least 0"):
            backend.refresh(flux.pipe, wrong)  # type: ignore[arg-type]  # the mistakes that are tested
    backend.disable(flux.pipe)
    backend.disable(flux.pipe)
    assert not backend.enabled
    assert torch.equal(flux.run(steps=10), full)


def test_without_a_scheduler_an_unknown_step_count_stays_unknown() -> None:
    register_extractor("Foreign", take_apart)
    pipeline = SimpleNamespace(transformer=Foreign())
    backend = TeaCacheBackend({"rel_l1_thresh": 0.5, "coefficients": IDENTITY})
    backend.enable(pipeline)
    for steps in (8, 0):
        backend.refresh(pipeline, steps)
        denoise(pipeline.transformer)
    assert backend.handle is not None
    assert [event.total for event in backend.handle.events] == [8] * 8 + [None] * 8
    assert any(event.reused for event in backend.handle.events if event.total is None)
    backend.disable(pipeline)
    # MagCache cannot do without it; the config may say it where the request does not.
    mag = MagCacheBackend({"mag_ratios": [1.0, *[0.98] * 7]})
    mag.enable(pipeline)
    mag.refresh(pipeline, 0)
    with pytest.raises(StateError, match="depends on the number of steps"):
        denoise(pipeline.transformer)
    mag.disable(pipeline)
    mag = MagCacheBackend({"mag_ratios": [1.0, *[0.98] * 7], "num_inference_steps": 8})
    mag.enable(pipeline)
    for _ in range(2):
        denoise(pipeline.transformer)
        mag.refresh(pipeline, 0)
    assert mag.handle is not None
    assert [event.total for event in mag.handle.events] == [8] * 16
    mag.disable(pipeline)


class Held(CacheBackend):
    """As an engine's own backend is written: two methods, and nothing else of the base class."""

    def enable(self, pipeline: Any) -> None:
        transformer, self.forward, self.last, self.calls = pipeline.transformer, pipeline.transformer.forward, {}, 0

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            branch = self.calls % 2
            if self.calls > 4 and self.calls % 4 > 1:
                return self.last[branch]
            self.last[branch] = self.forward(*args, **kwargs)
            return self.last[branch]

        transformer.forward = forward
        self.enabled = True

    def refresh(self, pipeline: Any, num_inference_steps: int, verbose: bool = True) -> None:
        self.last, self.calls = {}, 0


def test_a_backend_of_two_methods_is_enough(flux: Tiny) -> None:
    assert CacheBackend.__abstractmethods__ == {"enable", "refresh"}
    full = flux.run(steps=8)
    backend = Held({"any": "options"})
    assert repr(backend) == "Held(config={'any': 'options'})"
    assert (backend.is_enabled(), backend.stats()) == (False, {})
    backend.disable(flux.pipe)
    backend.enable(flux.pipe)
    assert backend.is_enabled()
    reused = flux.run(steps=8)
    assert not torch.equal(reused, full)
    backend.refresh(flux.pipe, 8)
    assert torch.equal(flux.run(steps=8), reused), "refresh makes each request the first"
    with pytest.raises(StateError, match=r"Held\.disable: this backend cannot restore the pipeline; implement disable"):
        backend.disable(flux.pipe)


# -- what each becomes ------------------------------------------------------------------------------------------------

TEA = {"rel_l1_thresh": 0.6, "coefficients": (0.0, 0.0, 0.0, 0.3, 0.0)}
RESIDUAL = {"residual_diff_threshold": 1e9, "max_warmup_steps": 2, "max_cached_steps": 5}
TAIL = {"policy": ResidualDiff(**RESIDUAL), "region": "tail", "shared_cfg_decision": True}
SECOND = {"Fn_compute_blocks": 2, "enable_taylorseer": True, "taylorseer_order": 2}


@pytest.mark.parametrize(
    ("name", "options", "fields"),
    [
        ("tea_cache", TEA, {"policy": TeaCache(**TEA), "region": "blocks"}),
        ("db_cache", RESIDUAL, {**TAIL, "first_blocks": 1}),
        ("first_block_cache", RESIDUAL, {**TAIL, "first_blocks": 1}),
        ("db_cache", {**RESIDUAL, **SECOND}, {**TAIL, "first_blocks": 2, "forecaster": Polynomial(order=2)}),
        ("easy_cache", {"easy_thresh": 0.7, "easy_warmup_steps": 2}, {"policy": EasyCache(threshold=0.7, warmup=2)}),
        ("sea_cache", {"sea_thresh": 0.6, "sea_warmup_steps": 3}, {"policy": SeaCache(threshold=0.6, warmup=3)}),
        (
            "error_control",
            {"error_tolerance": 0.9, "error_max_gap": 4},
            {"policy": ErrorControl(tolerance=0.9, max_gap=4)},
        ),
        (
            "taylorseer",
            {"taylorseer_interval": 4, "taylorseer_warmup_steps": 2},
            {"policy": EveryNth(every=4, warmup=2)},
        ),
    ],
)
def test_a_name_is_its_strategy(name: str, options: dict[str, Any], fields: dict[str, Any]) -> None:
    tiny = TINY["wan"]()
    with omnireuse.enable(tiny.pipe, name, **options) as handle:
        made = tiny.run(steps=9)
        assert handle.strategy is not None
        assert {each: getattr(handle.strategy, each) for each in fields} == fields
    assert (handle.summary().name, handle.summary().reused_calls > 0) == (name, True)
    if "region" in fields:
        with omnireuse.enable(tiny.pipe, Strategy(**fields)):
            assert torch.equal(tiny.run(steps=9), made)


def test_taylorseer_is_a_polynomial_on_the_output_at_its_true_spacing() -> None:
    tiny = TINY["wan"]()
    with omnireuse.enable(tiny.pipe, "taylorseer", taylorseer_order=2) as handle:
        assert handle.strategy.forecaster == Polynomial(order=2)
        assert handle.strategy.chosen_target == "output"
        tiny.run(steps=10)
    done = "".join("r" if event.reused else "c" for event in handle.events if event.branch == "cond")
    assert done == "cccrrcrrcc"


def test_an_order_of_taylorseer_turns_it_on(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, "db_cache", taylorseer_order=2) as handle:
        assert handle.strategy.forecaster == omnireuse.Polynomial(order=2)
    with omnireuse.enable(flux.pipe, "db_cache", taylorseer_order=2, enable_taylorseer=False) as handle:
        assert not isinstance(handle.strategy.forecaster, omnireuse.Polynomial)


# -- what they refuse -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        (
            "tea_cache",
            {"rel_l1_thresh": "0.2"},
            r"enable\(rel_l1_thresh='0.2'\): rel_l1_thresh must be .*; write rel",
        ),
        ("tea_cache", {"mag_threshold": 0.3}, "unknown option of 'tea_cache' 'mag_threshold'"),
        ("easy_cache", {"sea_thresh": 0.3}, "unknown option of 'easy_cache' 'sea_thresh'"),
        ("taylorseer", {"taylorseer_order": 4}, "taylorseer_order must be 1, 2 or 3"),
        (
            "db_cache",
            {"Fn_compute_blocks": 100},
            r"enable\(Fn_compute_blocks=100, Bn_compute_blocks=0\): together",
        ),
        ("db_cache", {"Fn_compute_blocks": 3, "Bn_compute_blocks": 2}, "at most the 4 blocks"),
        ("db_cache", {"taylorseer_order": 4}, "taylorseer_order must be 1, 2 or 3, got 4; 'cache_dit' takes higher"),
        ("db_cache", {"force_refresh_step_hint": 3}, "'force_refresh_step_hint'.*'cache_dit' has it"),
        (
            "first_block_cache",
            {"Fn_compute_blocks": 2},
            r"enable\(Fn_compute_blocks=2\): Fn_compute_blocks must be 1",
        ),
        ("first_block_cache", {"Bn_compute_blocks": 1}, "Bn_compute_blocks must be 0"),
    ],
)
def test_options_that_a_cache_cannot_serve_are_refused_by_their_own_names(
    flux: Tiny, name: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        omnireuse.enable(flux.pipe, name, **options)
    assert omnireuse.handle_of(flux.pipe) is None


def test_db_cache_refuses_an_option_of_another_in_the_flat_record(flux: Tiny) -> None:
    backend = get_cache_backend("db_cache", {"force_refresh_step_hint": 3})
    assert backend is not None
    with pytest.raises(ConfigError, match="force_refresh_step_hint must be None with 'db_cache'"):
        backend.enable(flux.pipe)


@pytest.mark.parametrize("name", ["tea_cache", "mag_cache", "db_cache", "first_block_cache"])
def test_a_unet_is_refused_before_any_figures_are_looked_up(name: Any) -> None:
    pipe = TINY["stable_diffusion"]().pipe
    with pytest.raises(
        UnsupportedModelError, match=rf"'{name}' cannot serve UNet2DConditionModel.*'sea_cache'"
    ) as said:
        omnireuse.enable(pipe, name)
    assert "region" not in str(said.value)
    for other in ("easy_cache", "error_control", "sea_cache", "taylorseer"):
        omnireuse.enable(pipe, other).disable()


def test_figures_are_those_of_the_model_and_of_the_signal_we_watch() -> None:
    assert TeaCacheConfig().transformer_type == "QwenImageTransformer2DModel"
    assert TeaCacheConfig(transformer_type="FluxTransformer2DModel").coefficients[0] == pytest.approx(498.651651)
    # Wan's rows differ by signal; ours is the projected time embedding.
    assert published_coefficients("WanTransformer3DModel")[0] == pytest.approx(-52186.2437)
    with pytest.raises(UnknownNameError, match=r"FluxTransformer2DModel.*to calibrate:.*fit_tea_cache"):
        TeaCacheConfig(transformer_type="MyOwnTransformer")
    for bad in (math.nan, 0, -1):
        with pytest.raises(ConfigError, match="rel_l1_thresh"):
            TeaCacheConfig(rel_l1_thresh=bad)
    with pytest.raises(ConfigError, match="exactly 5"):
        TeaCacheConfig(coefficients=[1, 2])
    with pytest.raises(NothingPublishedError) as said:
        published_ratios("SD3Transformer2DModel")
    assert "did you mean" not in str(said.value)
    assert "MagCacheBackend(dict(mag_calibrate=True)).enable(pipe)" in str(said.value)
    assert str(pickle.loads(pickle.dumps(said.value))) == str(said.value)


def test_tea_cache_learns_a_models_own_polynomial(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, policy="never", region="blocks", signal="modulated_input") as handle:
        flux.run(steps=20)
        flux.run(steps=20, seed=1)
    coefficients = omnireuse.fit_tea_cache(handle.events)
    assert len(coefficients) == 5
    pairs = [(e.drift, e.error) for e in handle.events if e.drift is not None and e.error is not None]
    fitted = [sum(c * d**p for c, p in zip(coefficients, (4, 3, 2, 1, 0), strict=True)) for d, _ in pairs]
    mean = sum(error for _, error in pairs) / len(pairs)
    assert sum((f - e) ** 2 for f, (_, e) in zip(fitted, pairs, strict=True)) < sum((e - mean) ** 2 for _, e in pairs)
    with pytest.raises(ConfigError, match="at least 10 steps"):
        omnireuse.fit_tea_cache(handle.events[:5])


def test_what_encodes_no_prompts_gets_no_cache_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"):
        assert install_prompt_embed_cache(SimpleNamespace()) is None
    assert caplog.text.count("SimpleNamespace has no callable encode_prompt") == 1
