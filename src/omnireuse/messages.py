"""What errors say if it takes more than a line at its place: *object(field=value): field must …, got …; what to do*.

A name says what is wrong, and an error fills the placeholders: ``raise StateError(messages.NOT_ENABLED, backend=…)``.
A value out of its range is told by the type of its field (`omnireuse.base.validation`), and an unknown name by
`UnknownNameError`.
"""

from __future__ import annotations

# --- what is given to `enable` and `tune` ---

FILE_AS_BACKEND = "enable(pipeline, {file!r}): the second argument names a cache backend; write profile={file!r}"
AUDIT_BESIDE = "enable(audit={audit!r}): a default, target or profile is audited, no {given}; leave one of the two out"
TUNE_BESIDE = "enable(tune={tune!r}): tuning chooses the plan, which {given} has chosen; leave one of the two out"
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
HANDLE_COPIED = (
    "a Handle of a pipeline cannot be copied or pickled; call omnireuse.enable there, or pass on handle.summary()"
)

# --- files, registries and commands ---

NOT_WRITTEN = "{path}: cannot be written ({why}); {left}"
ENTRY_POINT = "{name!r} of the entry points {place}: {why!r}; fix or uninstall {of}"
CALL_OPTION = "calibrate(--call): {name} is an option of the command, not an argument of the pipeline; write it as such"
OUT_EXISTS = "calibrate(--out {out!r}): --out must be new, got a file; give another name, or --force to write over it"
MODEL_MISSING = "{command}: MODEL, a folder or an id, or --pipeline must be given; see omnireuse {command} --help"
MODEL_TWICE = "{command}: MODEL and --pipeline cannot both be given; see omnireuse {command} --help"
PIPELINE_FUNCTION = "{command}(--pipeline {pipeline!r}): must be PACKAGE:FUNCTION, such as my_package.models:load"

# --- caches of autoregressive engines ---

HELD_WITH_ANOTHER_SIZE = "allocate{given}: held with {held} encoder tokens, got {tokens}; free it first"
NO_FREE_SLOTS = "allocate{given}: got {tokens} encoder tokens with {free} of {size} free; ask can_allocate first"
ITEM_OVER_BATCH = (
    "scheduler_config(max_num_batched_tokens={got}): field must be at least {least}, the largest {modality} item, "
    "while disable_chunked_mm_input is set; raise it to {least} or allow chunking"
)
TOKENS_NOT_MAPPED = "num_scheduled_tokens must map request ids to counts, got {kind}"
SEVERAL_KV_GROUPS = "input_batch.block_table: must have one KV cache group, got {groups}; turn the prefix cache off"
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
    "prefix cache: a slot must lie in [0, {slots}) or be −1, got {slot}; give the KV cache's num_blocks and block_size"
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
