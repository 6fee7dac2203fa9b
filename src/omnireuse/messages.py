"""What errors say if it takes more than a line at its place: *object(field=value): field must …, got …; what to do*.

A name says what is wrong, and an error fills the placeholders: ``raise StateError(messages.NOT_ENABLED, backend=…)``.
A value out of its range is told by the type of its field (`omnireuse.base.validation`), and an unknown name by
`UnknownNameError`.
"""

from __future__ import annotations

# --- what is given to `enable` and `tune` ---

FILE_AS_BACKEND = "enable(pipeline, {file!r}): the second argument names a cache backend; write profile={file!r}"
AUDIT_BESIDE = "enable(audit={audit!r}): a default, target or profile is audited, no {given}; leave one of the two out"
TUNE_BESIDE = (
    "enable(tune={tune!r}): tuning chooses the plan of the default, speedup=, computed_steps=, quality= and "
    "tolerance=, and {given} has chosen one; leave one of the two out"
)
POLICY_WITHOUT_NAME = "enable(policy={policy!r}): it needs an argument; write policy=omnireuse.{kind}({argument})"
BACKEND_BESIDE_POLICY = (
    "enable(backend={backend!r:.60}): give either a backend or a policy with its forecaster, not both"
)
CHOICE_OF_BACKEND = (
    "enable({name}={value!r:.60}): the {backend} chooses its {name} itself; leave it out, or choose all yourself: "
    "combinations go through policy=, forecaster=, region="
)
CHOICE_ALONE = (
    "enable({name}=…): a policy, a backend or a target must be given with it; to have it in the default write "
    "enable(pipeline, {write})"
)
ONE_COMPUTED_STEP = (
    "{place}(computed_steps=1): computed_steps must be at least 2{without}, got 1; one cannot be forecast from"
)
QUALITY_UNTUNED = (
    "{place}(quality={quality!r}): a quality can only be promised by a profile of this pipeline, or be expected of "
    "tuning, which is off ({why}); give profile=, which omnireuse.calibrate makes, or tolerance=, the share of the "
    "final latents that reuse may change, which needs neither"
)
ENABLED_ALREADY = (
    "reuse is already enabled on this {pipeline} ({name}); call omnireuse.disable(pipeline) first, or use "
    "omnireuse.handle_of(pipeline)"
)
HANDLE_COPIED = "a Handle of a pipeline cannot be copied or pickled; call omnireuse.enable there, or give its summary()"

# --- files, registries and commands ---

NOT_WRITTEN = "{path}: cannot be written ({why}); {left}"
ENTRY_POINT = "{name!r} of the entry points {place}: {why!r}; fix or uninstall {of}"
CALL_OPTION = "calibrate(--call): {name} is an option of the command, not an argument of the pipeline; write it as such"
OUT_EXISTS = "calibrate(--out {out!r}): --out must be new, got a file; give another name, or --force to write over it"
MODEL_MISSING = "{command}: MODEL, a folder or an id, or --pipeline must be given; see omnireuse {command} --help"
MODEL_TWICE = "{command}: MODEL, a folder or an id, and --pipeline cannot both be given; see omnireuse {command} --help"
PIPELINE_FUNCTION = "{command}(--pipeline {pipeline!r}): must be PACKAGE:FUNCTION, such as my_package.models:load"

# --- caches of autoregressive engines ---

HELD_WITH_ANOTHER_SIZE = "allocate{given}: held with {held} encoder tokens, got {tokens}; free it first"
NO_FREE_SLOTS = "allocate{given}: got {tokens} encoder tokens with {free} of {size} free; ask can_allocate first"
ITEM_OVER_BATCH = (
    "scheduler_config(max_num_batched_tokens={got}): field must be at least {least}, the largest {modality} item, "
    "while disable_chunked_mm_input is set; raise it to {least} or allow chunking"
)
TOKENS_NOT_MAPPED = "num_scheduled_tokens must map request ids to counts, got {kind}"
SEVERAL_KV_GROUPS = (
    "input_batch.block_table: must have one KV cache group, got {groups}: slots of several groups do not name one row; "
    "turn the prefix cache off for hybrid models"
)
TOO_FEW_STARTS = (
    "query_start_loc: must have an entry for every request, got {entries} and request {request!r} at {index}"
)
NO_KEY_SPEC = "PrefixCacheOptions(mm_keys[{name!r}]={spec!r}): field must be (feature size, torch dtype)"
KIND_OF_ROWS = "multimodal_outputs[{key!r}]: rows of a deferred key must stay {held}, got {got} for request {request!r}"
COPY_NOT_ON_CPU = "hidden_states_cpu: must be contiguous on the CPU, got strides {strides} on {device}"
DEFERRED_WITHOUT_ROWS = "{key}: a deferred key must be a tensor with a row for each of {tokens} tokens, got {got}"
HIT_NOT_ALIGNED = "{where}: prefix hit not block aligned: it must be a multiple of {size} tokens, got {got}"
HIT_WITHOUT_BLOCKS = "{where}: a prefix hit of {tokens} tokens must name {blocks} blocks, got {got}"
SLOTS_OF_ANOTHER_STEP = (
    "prefix cache: the slot mapping must cover the step's {tokens} tokens, got {slots} slots of another batch"
)
STEPS_UNCONSUMED = (
    "prefix cache: at most {depth} steps may wait for materialize or discard_step, and none was asked for within "
    "{seconds:g} s: unconsumed step contexts (ids={steps})"
)
REQUESTS_NOT_SAVED = (
    "prefix cache(step={step}): requests outside the save snapshot: {unknown}; ask for those of the step"
)
ROWS_NEVER_WRITTEN = (
    "prefix cache(request={request!r}): every row of its prefix hit must be present, {missing} were never written; "
    "hidden states must be saved in every step"
)
WRITE_FAILED = "prefix cache: a write failed ({error}), and rows are missing that the engine counts on; restart it"
STEP_NOT_WAITING = "prefix cache(step={step}): it must be a step that was saved and not asked for yet, one of {known}"
SLOT_OUTSIDE = (
    "prefix cache: a slot must lie in [0, {slots}) (or be −1, for padding), got {slot}; num_blocks and block_size must "
    "be the KV cache's"
)
BLOCK_OUTSIDE = "prefix cache: a block id must lie in [0, {blocks}), got {block}; num_blocks must be the KV cache's own"
ROW_ABSENT = (
    "{where}: every cached row must be present, {why}; write the key for every token the engine may hit, or choose "
    "another PrefixCacheOptions(absent=…)"
)

# --- cache backends and prompt embeddings ---

CANNOT_DISABLE = (
    "{backend}.disable: this backend cannot restore the pipeline; implement disable, or load the pipeline anew"
)
BACKEND_ENABLED = "{backend!r} is enabled already; call disable(pipeline) before enabling it on a pipeline again"
NOT_ENABLED = "{backend}.refresh: this pipeline is not enabled; call enable(pipeline) first"
NO_PIPELINE = "install_prompt_embed_cache(pipeline=None): pipeline must have an encode_prompt; load the pipeline first"
ENCODES_IN_COROUTINE = (
    "install_prompt_embed_cache(pipeline={pipeline}): encode_prompt must be a plain function, got a coroutine "
    "function; install the cache on an object with the plain function that it calls"
)
NO_WEAK_REFERENCE = (
    "install_prompt_embed_cache(pipeline={pipeline}): pipeline must allow weak references and a new attribute "
    "encode_prompt, but {error}; give the class '__dict__' and '__weakref__' slots"
)
WRAPPED_AGAIN = "uninstall_prompt_embed_cache(pipeline={pipeline}): encode_prompt was wrapped again; undo that first"
NO_PROMPT_CACHE = "bump_epoch(pipeline={pipeline}): it has no prompt cache; call install_prompt_embed_cache first"

# --- a pipeline, where it comes from, and its call ---

CALL_TAKES_NOT = "{owner}: its call must take {name}, but it takes {taken}; give a function that makes one that does"
NO_TEXT_ENCODER = "{pipeline}: {name} must be there to draw prompts, got None; load it with its text encoders"
CALL_WITHOUT_GENERATOR = (
    "{owner}: its call takes no generator, so noise is one a call and batch_size must be 1, got {got}"
)
NO_PICTURE = "{name}(shape={shape}): shape must be (height, width, channels) of 1 or 3 channels, after frames of a clip"
NO_PIXELS = "{name}: values must be uint8 or finite floats in 0..1, got {low:g}..{high:g}"
LOADED_ALREADY = "{where}({name}=…): the {kind} is loaded already; move it with .to(device, dtype), or give its folder"
NO_DEVICE = "{where}(device={device!r}): must be a device of this machine: {reason}"
MOVES_NOT = "{where}({given}): {pipeline}.to() does not move it; let the function that makes it choose both"
NO_PIPELINE_FOLDER = (
    "{where}({name!r}): must be the folder of a diffusers pipeline, but {reason}; give package:function for a "
    "function that loads it"
)
NO_SUCH_FOLDER = (
    "{where}({name!r}): must be the folder of a diffusers pipeline, the id of one on a hub (owner/name), or "
    "package:function; there is no such folder"
)

# --- models, schedulers and signals ---

REGION_UNSUPPORTED = "region {region!r} cannot serve {model}: {why}; use region 'step' or 'call'"
TARGET_UNDEFINED = "prediction_target={target!r} is not defined for this run: {why}; use prediction_target='output'"
NOISE_UNKNOWN = "signal 'filtered_latents' needs the noise of the scheduler, which is not known; use signal 'latents'"
NO_ROWS_AND_COLUMNS = "signal 'filtered_latents' cannot tell rows and columns of shape {shape}; use signal 'latents'"
BRANCHES_DIFFER = "no weights can be fitted: the full run has {branches} branches a step, the run after it others"
STEP_NOT_LINEAR = "{scheduler}: no weights can be fitted, for what its steps make of the output is not one factor of it"
STEPS_UNKNOWN = (
    "{policy!r:.300} depends on the number of steps, which is not known; call handle.expect(num_inference_steps), or "
    "refresh(pipeline, num_inference_steps) of a cache backend"
)
STEP_BEYOND = "{policy!r} names step {step}, but this run has {total} steps; give a schedule for {total}"

# --- named caches ---

GROUP_OF_CACHE_DIT = "cache_dit(group=…): group must be None, because the library sums by itself; 'db_cache' takes one"
MASK_WITHOUT_STEPS = "the number of steps of a mask is not known; call refresh(pipeline, num_inference_steps)"
TOO_FEW_PAIRS = (
    "fit_tea_cache needs at least {least} steps with drift and error, got {got}; run a whole generation with "
    "Strategy(policy=Never(), region='blocks', signal='modulated_input', measure_errors=True)"
)
CONFIG_NOT_JSON = "OmniDiffusionConfig(cache_config=…): not JSON at line {at.lineno}, column {at.colno}: {at.msg}"
RATIOS_OF_EXTRACTOR = "MagCache calibration needs a declared model; models with extractors take mag_ratios"
CACHE_UNSUPPORTED = "{cache!r} cannot serve {model}: {why}; enable(pipeline) serves any model, and so do {others}"

# --- profiles and calibration ---

NOT_MEASURED_FOR = "profile(backend={backend!r}): backend must be 'tea_cache' or 'mag_cache' with a profile"
TOO_FEW_JUDGED = (
    "profile(quality={quality:g}): a promise takes at least {least} held-out prompts, and this profile was judged on "
    "{judged}; calibrate with more prompts, or ask for speedup= or computed_steps="
)
PROFILE_OF_ANOTHER = "{why}; calibrate this pipeline, a {pipeline} (the profile is of {origin})"
NOTHING_PROMISED = (
    "profile(quality={quality:g}): nothing is promised, for {why}; calibrate the pipeline, or ask for "
    "speedup= or computed_steps="
)
NO_PROFILE = (
    "{path}: cannot be read (No such file or directory); give the file of a profile, its folder, or its id on the "
    "hub (owner/name or owner/name@revision)"
)
NO_REVISION = "Profile(revision={revision!r}): revision must be left out, for {path} is no repository of the hub"
STEPS_TWICE = "calibrate(steps={steps!r}, num_inference_steps={other!r}): both say how many denoising steps; give one"
NO_BUDGETS = (
    "calibrate(computed_steps={given!r:.60}): computed_steps must be a list of one or more budgets, each a whole "
    "number from 2 to steps={steps}; give {write}"
)
FULL_RUN_NOT_FINITE = "the full run of {prompts} is not finite; try another dtype, or leave the prompt out"
TOO_FEW_PROMPTS = (
    "tune(prompts={prompts!r:.60}): prompts must be at least {least} for a quality or a tolerance, got {got}; some "
    "of them judge the plan, which is made from the others"
)

# --- values in stores ---

VALUE_NOT_PLAIN = "value: must be tensors, plain values, tuples, lists and dicts with text keys, got {kind}"
VALUE_NOT_DENSE = "value: must be made of dense tensors and plain values, got {kind}"

# --- what runs in a pipeline ---

CONTROLNET_CHANGED = (
    "a ControlNet's output is now changed on the way to the denoiser, and a step that was to be reused is computed; "
    "keep the arguments of the call the same at all steps, or give region='call'"
)
NOT_LOADED = "reuse needs a pipeline, got {got}; pass a loaded pipeline, as {write}.from_pretrained(…) returns it"
IS_A_MODEL = "{model} is a model, and reuse is enabled on its pipeline: pass the pipeline, as in omnireuse.enable(pipe)"
NO_DENOISER = "{pipeline} has no denoiser: looked for a torch module at {names}"
SEVERAL_GROUPS = (
    "enable: the denoisers run in several process groups ({groups}); give the ranks that decide alike as group="
)
PARALLEL_LATER = (
    "{policy} measures, and {model} was made parallel after reuse was enabled; call omnireuse.disable(pipeline) and "
    "enable it again, so that the ranks decide alike"
)
LATENTS_NOT_FINITE = (
    "the latents of this run are NaN or infinite from step {step} on, which {forecaster} forecast, unless a callback "
    "changed them there; compute more steps, or give another forecaster"
)
REPLACED_ON_OBJECT = "{kind}.{name} was replaced on this object, which bypasses reuse; remove it, or enable reuse first"
SEVERAL_OUTPUTS = (
    "Strategy(region='step'): {model} must return one kind of latents, got {kinds}, of which the scheduler is given "
    "one; use region='call', which forecasts all of them, or 'blocks'"
)
NO_PARAMETER = (
    "{block}.forward has no parameter {name!r}, as declared for {model}; region 'blocks' does not support this version "
    "of the model, use region 'call'"
)
NO_BLOCK_LIST = "{model} has no block list {name!r}, as declared; use region 'call'"
STACK_RUNS_AGAIN = (
    "{model} runs its first block again before its last, and cannot be reused; use region 'call' or 'step'"
)
NO_SCHEDULER = (
    "Strategy(region='step'): {name}.scheduler must have set_timesteps and step, got {got!r}; use region='call'"
)
GRADIENT_CUT = "reuse would cut a gradient; sample under torch.no_grad(), or disable reuse while gradients are needed"
NOISE_NOT_FALLING = "the noise of {scheduler} is not known, or does not fall from step to step"
NO_PICTURES_MADE = "a quality is one of pictures, and the call returns none (output_type='pil'); give a tolerance="
