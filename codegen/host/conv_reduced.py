"""Code for 1 x 1 convolutions in narrow formats: narrow matrix products over pixels."""

from __future__ import annotations

from superkernel.codegen.host.matmul_reduced import emit_narrow

emit = emit_narrow
