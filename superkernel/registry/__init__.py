"""The kernel registry: one row per kernel variant, and the choice among them with its reasons.

    registry = HOST_KERNELS.registry    # of superkernel.scheduler.families: rows come from the kernels' declarations
    selection = registry.select_body(body, target, Policy.of(options))
    selection.kernel              # id for HOST_KERNELS and codegen.host.emitters.emitter_of
    selection.explanation.text    # every candidate and every clause it failed

Files, in reading order: predicates (clauses), records (rows and requirements), facts, eligibility, score, selection,
explanation; names and lint; manifest; commands.
Architecture invariant: the registry knows kernels by id only and imports neither scheduler nor codegen.
"""
